"""The worker of a session, the name that NeMo RL registers, and the number of sessions that fit."""

import subprocess
import sys

import pytest

from rollbook.errors import UsageError
from rollbook.trainers.nemo_rl import register
from rollbook.trainers.nemo_rl.code_samples import CodeConfig, CodeRequest
from rollbook.trainers.nemo_rl.code_workers import (
    DESCRIPTORS_PER_SESSION,
    SPARE_DESCRIPTORS,
    LocalWorkers,
    choose_worker,
    fit_sessions,
    split_by_worker,
    start_workers,
)

STAND_IN = {
    "__init__.py": "",
    "distributed/__init__.py": "",
    "distributed/ray_actor_environment_registry.py": "ACTOR_ENVIRONMENT_REGISTRY = {}\n",
    "distributed/virtual_cluster.py": "class PY_EXECUTABLES:\n    SYSTEM = 'the python'\n",
    "environments/__init__.py": "",
    "environments/utils.py": "ENV_REGISTRY = {'math': {'actor_class_fqn': 'theirs'}}\n"
    "def register_env(env_name, actor_class_fqn):\n    assert env_name not in ENV_REGISTRY\n"
    "    ENV_REGISTRY[env_name] = {'actor_class_fqn': actor_class_fqn}\n",
}


def asking(name):
    return CodeRequest(name, None, ("1",), 1.0, 64)


def test_an_id_has_the_same_owner_in_every_process():
    names = [f"sample-{n}" for n in range(50)] + ["\N{SNOWMAN}", "\ud800"]
    here = [choose_worker(name, 7) for name in names]
    code = "from rollbook.trainers.nemo_rl.code_workers import choose_worker\n"
    code += f"print([choose_worker(n, 7) for n in {names!a}])"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert there.stdout.strip() == str(here)
    assert set(here) == set(range(7))


def test_every_sample_is_in_one_share():
    batch = [asking(f"s{n}") for n in range(20)]
    parts = split_by_worker(batch, 3)
    assert sorted(place for places in parts.values() for place in places) == list(range(20))
    assert all(choose_worker(batch[place].session_id, 3) == who for who, places in parts.items() for place in places)
    assert split_by_worker([], 3) == {}


def test_without_ray_the_workers_are_here():
    workers = start_workers(CodeConfig(num_workers=2, worker_group="g"))
    assert isinstance(workers, LocalWorkers)
    assert workers.turns([]) == []
    workers.close()


def test_nothing_heavy_is_imported_for_it():
    code = "import sys, rollbook.trainers.nemo_rl; print({'ray', 'torch', 'nemo_rl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_nemo_rl_learns_the_name_and_the_python(tmp_path):
    for name, text in STAND_IN.items():
        (tmp_path / "nemo_rl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nemo_rl" / name).write_text(text)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rollbook.trainers.nemo_rl import register\nregister('code_tool')\nprint(register('code_tool'))\n"
        "from nemo_rl.environments.utils import ENV_REGISTRY\n"
        "from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY as pythons\n"
        "import pkgutil\nname = ENV_REGISTRY['code_tool']['actor_class_fqn']\n"
        "print(pkgutil.resolve_name(name).__name__, pythons[name])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["code_tool", "CodeEnvironment the python"]


def test_without_nemo_rl_there_is_nothing_to_register_with():
    with pytest.raises(UsageError, match="NeMo RL is not installed"):
        register()


def test_descriptors_bound_the_sessions_and_the_soft_limit_is_raised_for_them():
    code = (
        "import resource\nfrom rollbook.trainers.nemo_rl.code_workers import fit_sessions\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048))\n"
        "print(fit_sessions(100), resource.getrlimit(resource.RLIMIT_NOFILE)[0], fit_sessions(10_000), fit_sessions(4))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    wanted = [
        100,
        100 * DESCRIPTORS_PER_SESSION + SPARE_DESCRIPTORS,
        (2048 - SPARE_DESCRIPTORS) // DESCRIPTORS_PER_SESSION,
        4,
    ]
    assert [int(word) for word in done.stdout.split()] == wanted
    assert fit_sessions(1) == 1
