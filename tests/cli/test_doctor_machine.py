import json
import resource
import sys
from types import SimpleNamespace

import pytest

from rollbook.cli import doctor_checks
from rollbook.cli.doctor_checks import DoctorFinding
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
    "containers",
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
    assert list(doctor_checks.check_schedulers()) == [
        DoctorFinding("slurm", False, "scontrol: not found; go to a machine that can submit to Slurm")
    ]
    assert not doctor_checks.check_gpu().works


def test_a_cluster_that_answers_is_a_yes(tmp_path, monkeypatch):
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'MaxArraySize            = 2000'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(doctor_checks.check_schedulers()) == [
        DoctorFinding("slurm", True, "--on slurm submits arrays of up to 2000 workers")
    ]


def test_schedulers_of_other_packages_are_checked_too(monkeypatch):
    monkeypatch.setattr("rollbook.clusters.scheduler_names", lambda: ["moon"])
    (found,) = doctor_checks.check_schedulers()
    assert (found.what, found.works) == ("moon", False)
    assert "no scheduler is called 'moon'" in found.detail


@pytest.mark.parametrize(
    ("module", "finding"),
    [
        (SimpleNamespace(__version__="2.50.0"), DoctorFinding("ray", True, "ray 2.50.0, for --on ray")),
        (
            SimpleNamespace(__version__="2.9.0"),
            DoctorFinding("ray", False, "--on ray: Ray 2.9.0 is too old, 2.41 is needed: pip install 'rollbook[ray]'"),
        ),
        (None, DoctorFinding("ray", False, "--on ray: Ray is not installed here: pip install 'rollbook[ray]'")),
    ],
)
def test_ray_is_a_yes_where_workers_can_run_on_it(module, finding, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", module)
    assert doctor_checks.check_ray() == finding


def test_a_broken_driver_is_a_no_in_its_own_words(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'driver not loaded' >&2\nexit 9\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor_checks.check_gpu() == DoctorFinding("gpu", False, "nvidia-smi: driver not loaded")


def test_the_sandbox_is_tried_out_not_claimed(monkeypatch):
    def refuse(*_):
        raise SandboxError("the sandbox did not start: unshare: Operation not permitted")

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
