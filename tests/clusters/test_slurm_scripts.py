"""The scripts, word for word. What no test can run here (pyxis, apptainer, GPUs) is at least read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rollbook.clusters.job_files import PackedFolder, ServerSpec, SubmissionOrder
from rollbook.clusters.job_scripts import make_array_script, make_report_script
from rollbook.clusters.profile import ClusterProfile, RoleProfile

GOLDEN = Path(__file__).parent / "golden"
RUN = Path("/runs/math")
PYTHON = "/opt/rollbook/bin/python"

PLAIN = ClusterProfile(name="math", partition="batch", time="4:00:00", python=PYTHON)
FULL = ClusterProfile(
    name="math",
    account="lab's account",
    partition="batch",
    cpu_partition="cpu",
    cpu_options=["--mem=4G"],
    qos="high",
    time="4:00:00",
    gpus=8,
    exclusive=True,
    options=["--constraint=h100&nvlink", "--mem=0"],
    setup=["module load cuda/12", "ulimit -n 65536"],
    secrets=["HF_TOKEN"],
    python=PYTHON,
    worker=RoleProfile(
        environment={"OMP_NUM_THREADS": "1", "NOTE": "it's $HOME; rm -rf /"}, workdir="/data/my project"
    ),
)
PYXIS = ClusterProfile(
    name="math",
    gres="gpu:h100:4",
    container="pyxis",
    sandbox_python="/opt/rollbook/bin/python",
    images={"rollbook": "/images/rollbook+26.sqsh"},
    mounts=["/models:/models:ro"],
    secrets=["HF_TOKEN"],
    worker=RoleProfile(image="rollbook", mounts=["/data:/data"], workdir="/data", environment={"A": "b c"}),
    report=RoleProfile(image="rollbook"),
)
APPTAINER = ClusterProfile(
    name="math",
    gpus=1,
    container="apptainer",
    worker=RoleProfile(image_path="/images/rollbook.sif", mounts=["/data:/data"], workdir="/data"),
)
SHARED = ServerSpec(kind="vllm", name="m", model_path="/models/m", tensor_parallel=8, shared=4)
SPREAD = ServerSpec(kind="vllm", name="m", model_path="/models/m", tensor_parallel=16, nodes=2, shared=4)
OWN_SPREAD = ServerSpec(kind="sglang", name="m", model_path="/models/m", tensor_parallel=16, nodes=2)

SCRIPTS = {
    "plain-workers": make_array_script(RUN, 1, "worker", SubmissionOrder(profile=PLAIN, workers=64), 64),
    "plain-report": make_report_script(RUN, 1, SubmissionOrder(profile=PLAIN, workers=64)),
    "full-workers": make_array_script(
        Path("/runs/it's 100% math"),
        2,
        "worker",
        SubmissionOrder(profile=FULL, workers=8, pack=PackedFolder("my project", "0")),
        8,
        ["n1", "n2"],
    ),
    "full-report": make_report_script(Path("/runs/it's 100% math"), 2, SubmissionOrder(profile=FULL, workers=8)),
    "shared-workers": make_array_script(RUN, 1, "worker", SubmissionOrder(profile=FULL, workers=16, serve=SHARED), 16),
    "shared-servers": make_array_script(RUN, 1, "server", SubmissionOrder(profile=FULL, workers=16, serve=SHARED), 4),
    "pyxis-workers": make_array_script(RUN, 1, "worker", SubmissionOrder(profile=PYXIS, workers=2), 2),
    "pyxis-report": make_report_script(RUN, 1, SubmissionOrder(profile=PYXIS, workers=2)),
    "spread-servers": make_array_script(RUN, 1, "server", SubmissionOrder(profile=FULL, workers=16, serve=SPREAD), 4),
    "spread-workers": make_array_script(
        RUN, 1, "worker", SubmissionOrder(profile=PLAIN, workers=4, serve=OWN_SPREAD), 4
    ),
    "boxed-workers": make_array_script(RUN, 1, "worker", SubmissionOrder(profile=PYXIS, workers=2, sandbox=True), 2),
    "installed-workers": make_array_script(
        RUN, 1, "worker", SubmissionOrder(profile=PLAIN, workers=2, sandbox=True, install=True), 2
    ),
    "installed-report": make_report_script(RUN, 1, SubmissionOrder(profile=PYXIS, workers=2, install=True)),
    "apptainer-workers": make_array_script(RUN, 1, "worker", SubmissionOrder(profile=APPTAINER, workers=2), 2),
}
every_script = pytest.mark.parametrize("name", SCRIPTS)


@every_script
def test_a_script_is_word_for_word_what_it_was(name: str) -> None:
    assert SCRIPTS[name] == (GOLDEN / f"{name}.sh").read_text()


@every_script
def test_bash_understands_a_script(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=SCRIPTS[name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@every_script
def test_shellcheck_finds_nothing(name: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck on this machine")
    done = subprocess.run(
        ["shellcheck", "--severity=style", "--exclude=SC2016", "-"],  # a dollar in quotes is meant as one
        input=SCRIPTS[name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")


@every_script
def test_a_script_decides_nothing(name: str) -> None:
    words = SCRIPTS[name].split()
    assert not {"if", "for", "while", "until", "sleep", "trap", "case", "curl", "kill"} & set(words)
    assert "$((" not in SCRIPTS[name]
    assert SCRIPTS[name].splitlines()[-1].startswith("exec ")


def test_no_value_reaches_the_shell_unquoted(tmp_path: Path) -> None:
    """Everything before the last line is run by a real bash: values come out as they went in."""
    hostile = 'it\'s $HOME; `touch pwned` "$(touch pwned)"'
    profile = ClusterProfile(
        python="/bin/true", worker=RoleProfile(environment={"NOTE": hostile}, workdir=str(tmp_path))
    )
    text = make_array_script(tmp_path / hostile, 1, "worker", SubmissionOrder(profile=profile, workers=1), 1)
    shown = text.replace("exec ", 'printf "%s" "$NOTE" #')
    done = subprocess.run(["bash"], input=shown, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == hostile, done.stderr
    ran = subprocess.run(
        ["bash"], input=text.replace("exec /bin/true", "printf '%s\\n'"), capture_output=True, text=True
    )
    assert str(tmp_path / hostile) in ran.stdout.splitlines()
    assert not list(tmp_path.rglob("pwned"))


def test_nodes_that_the_profile_leaves_out_stay_out_beside_those_that_failed() -> None:
    profile = ClusterProfile(options=["--exclude=n[7-9]", "--mem=0"])
    text = make_array_script(RUN, 1, "worker", SubmissionOrder(profile=profile, workers=1), 1, ["n1", "n2"])
    assert [line for line in text.splitlines() if "exclude" in line] == ["#SBATCH --exclude='n[7-9],n1,n2'"]
