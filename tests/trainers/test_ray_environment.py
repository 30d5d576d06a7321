"""With a real Ray: environment and workers are actors, and sessions stick wherever they are asked for."""

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed here: make test-ray has an environment with it")

from rollbook.trainers.nemo_rl import CodeEnvironment  # noqa: E402
from rollbook.trainers.nemo_rl import code_environment as code_environment_module  # noqa: E402
from rollbook.trainers.nemo_rl.code_workers import choose_worker  # noqa: E402
from support.alive import eventually  # noqa: E402
from support.codetool import code, code_environment, log  # noqa: E402
from support.ray_cluster import local_ray  # noqa: E402

WAIT_S = 120
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with code_environment():  # skips where there is no sandbox
        pass
    with local_ray(cpus=8):
        yield


@pytest.fixture
def started():
    environments = []

    def start(**settings):
        environments.append(CodeEnvironment.options(runtime_env={"env_vars": {"SEEN": "yes"}}).remote(settings))
        return environments[-1]

    yield start
    for env in environments:
        ray.get(env.shutdown.remote(), timeout=WAIT_S)
        ray.kill(env)


def step(env, messages, metadata):
    return ray.get(env.step.remote([log(message) for message in messages], metadata), timeout=WAIT_S)


def contents(back):
    return [one["content"] for one in back.observations]


def test_the_actor_answers_as_the_class_does(started):
    env = started()
    back = step(env, [code("x = 6"), code("1 / 0"), "words"], [{}, {}, None])
    assert contents(back)[0] == "<result></result>"
    assert "error[runtime]" in contents(back)[1]
    assert [bool(over) for over in back.terminateds] == [False, False, True]
    assert contents(step(env, [code("x * 7")], back.metadata[:1])) == ["<result>42</result>"]
    _, metrics = ray.get(env.global_post_process_and_metrics.remote({}), timeout=WAIT_S)
    assert metrics["code/turns"] == 3


def test_sessions_stick_to_their_workers(started):
    env = started(num_workers=3)
    first = step(env, [code(f"x = {n}") for n in range(12)], [{} for _ in range(12)])
    assert len({choose_worker(one["session_id"], 3) for one in first.metadata}) > 1
    shuffled = [*range(11, -1, -1)]
    again = step(env, [code("x")] * 12, [first.metadata[n] for n in shuffled])
    assert contents(again) == [f"<result>{n}</result>" for n in shuffled]


def test_two_environments_of_one_group_share_their_sessions(started):
    one, other = started(worker_group="shared", num_workers=2), started(worker_group="shared", num_workers=2)
    first = step(one, [code(f"x = {n}") for n in range(6)], [{} for _ in range(6)])
    second = step(other, [code("x += 10\nx")] * 6, first.metadata)
    third = step(one, [code("x")] * 6, second.metadata)
    assert contents(third) == [f"<result>{n + 10}</result>" for n in range(6)]


def test_many_steps_at_once_run_at_once(started):
    env = started(default_timeout_seconds=5, turns_at_once=8)
    step(env, [code("1")], [{}])
    futures = [env.step.remote([log(code(f"import time\ntime.sleep(1)\n{n}"))], [{}]) for n in range(8)]
    ready, late = ray.wait(futures, num_returns=8, timeout=6)
    assert (len(ready), late) == (8, [])


def test_a_worker_that_dies_costs_its_sessions_and_nothing_else(started):
    env = started(worker_group="mortal", num_workers=2)
    first = step(env, [code(f"x = {n}") for n in range(8)], [{} for _ in range(8)])
    victim = choose_worker(first.metadata[0]["session_id"], 2)
    ray.kill(ray.get_actor(f"rollbook-code-mortal-{victim}"))
    second = step(env, [code("'x' in globals()")] * 8, first.metadata)
    for text, one in zip(contents(second), first.metadata, strict=True):
        if choose_worker(one["session_id"], 2) == victim:
            assert text == "\n\n<result>\nsession: began afresh; what earlier turns made is gone\nFalse\n</result>"
        else:
            assert text == "<result>True</result>"


def test_a_worker_that_is_killed_from_outside_comes_back(started):
    env = started(worker_group="reborn")
    first = step(env, [code("x = 1")], [{}])
    actor = ray.get_actor("rollbook-code-reborn-0")
    ray.kill(actor, no_restart=False)
    second = step(env, [code("'x' in globals()")], first.metadata)
    assert "began afresh" in contents(second)[0]


def test_shutdown_ends_the_workers(started):
    env = started(worker_group="short")
    step(env, [code("1")], [{}])
    ray.get(env.shutdown.remote(), timeout=WAIT_S)

    def gone():
        try:
            ray.get_actor("rollbook-code-short-0")
        except ValueError:
            return True
        return False

    assert eventually(gone, 30)


def test_nemo_rls_way_to_create_an_environment_works(started):
    actor_class = code_environment_module.CodeEnvironment
    env = actor_class.options(runtime_env={"env_vars": {"A": "b"}}).remote({"num_workers": 1})
    assert contents(step(env, [code("2 + 2")], [{}])) == ["<result>4</result>"]
    ray.kill(env)
