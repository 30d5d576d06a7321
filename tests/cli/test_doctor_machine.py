import json
import resource

import pytest

from rollbook.cli import doctor_checks
from rollbook.sandbox import SandboxError

THINGS = [
    "python",
    "event loop",
    "embedded model",
    "reasoning_gym",
    "open files",
    "sandbox",
    "  user namespaces",
    "  landlock",
    "  seccomp",
    "slurm",
    "ray",
    "gpu",
]


def test_doctor_names_everything_and_a_reason_for_each(rollbook):
    done = rollbook("doctor", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [finding["what"] for finding in found] == THINGS
    assert all(finding["detail"] for finding in found)
    assert found[0]["works"]


def test_doctor_says_the_same_to_people(rollbook):
    done = rollbook("doctor")
    assert done.returncode == 0
    for thing in THINGS:
        assert thing in done.stdout


def test_what_is_not_on_the_path_is_a_no_with_a_reason(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "sbatch is not on PATH" in doctor_checks.check_slurm().detail
    assert not doctor_checks.check_gpu().works


def test_what_this_version_does_not_use_is_a_no_even_where_it_is_installed(tmp_path, monkeypatch):
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor_checks.check_slurm()
    assert not found.works
    assert "not part of this version" in found.detail
    assert str(tmp_path / "sbatch") in found.detail


@pytest.mark.parametrize("installed", [False, True])
def test_ray_is_reported_with_its_use(installed, monkeypatch):
    monkeypatch.setattr(doctor_checks, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(doctor_checks, "_read_version", lambda name: "2.50.0")
    found = doctor_checks.check_ray()
    assert found.works is installed
    assert found.detail.startswith("ray 2.50.0" if installed else "not installed (pip install ray)")
    assert "CodeEnvironment.remote, for NeMo RL, runs in its actors; workers of a run do not" in found.detail


def test_a_broken_driver_is_a_no_in_its_own_words(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'driver not loaded' >&2\nexit 9\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor_checks.check_gpu() == doctor_checks.DoctorFinding("gpu", False, "nvidia-smi: driver not loaded")


def test_the_sandbox_is_tried_out_not_claimed(monkeypatch):
    def refuse(*_):
        raise SandboxError("the sandbox did not come up: unshare: Operation not permitted")

    monkeypatch.setattr("rollbook.sandbox.backends.zygote.GuestLauncher", refuse)
    first = next(iter(doctor_checks.check_sandbox()))
    assert (first.works, "unshare" in first.detail) == (False, True)


def test_weaker_isolation_is_named_and_does_not_count_as_working(monkeypatch):
    monkeypatch.setattr("rollbook.sandbox.backends.zygote.NAMESPACE_LEVELS", [])
    first = next(iter(doctor_checks.check_sandbox()))
    if "only if weaker" not in first.detail:
        pytest.skip(f"nor are there weaker ones: {first.detail}")
    assert not first.works
    assert "no namespaces" in first.detail
    assert "allow_weaker=True" in first.detail


def test_a_low_file_limit_is_a_no(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    finding = doctor_checks.check_open_files()
    assert not finding.works
    assert "256 now, at most 1024" in finding.detail
