"""task.toml: what is read, what is refused by name, and which folders a path means. No container is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rollbook.environments import resolve
from rollbook.environments.harbor import HarborTask, find_refusals, find_task_folders, read_task
from rollbook.environments.harbor.harbor import Harbor
from rollbook.errors import UsageError

TASKS = Path(__file__).parents[2] / "containers" / "tasks"
QUIET = '[environment]\nnetwork_mode = "no-network"\n'
HTTP_SERVER = QUIET + '[[environment.mcp_servers]]\nname = "a"\ntransport = "http"\n'


def make_task(folder: Path, toml: str = QUIET) -> Path:
    for name, text in {
        "task.toml": toml,
        "instruction.md": "Do it.",
        "environment/Dockerfile": "FROM x",
        "tests/test.sh": "true",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def refusals(folder: Path, *, allow_network: bool = False) -> list[str]:
    return find_refusals(read_task(folder), allow_network=allow_network)


@pytest.mark.parametrize("folder", sorted(TASKS.iterdir()), ids=lambda path: path.name)
def test_the_task_folders_of_our_tests_are_honoured(folder: Path) -> None:
    assert refusals(folder) == []


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        ("", 'network_mode = "public": allow it with --allow-network'),
        ("[environment]\nallow_internet = true", "--allow-network"),
        (QUIET + "gpus = 1", "gpus"),
        (QUIET + 'gpu_types = ["H100"]', "gpu_types"),
        (QUIET + '[environment.tpu]\ntype = "v6e"', "tpu"),
        (QUIET + 'os = "windows"', "os = 'windows'"),
        (QUIET + 'workdir = "app"', "workdir = 'app'"),
        (QUIET + 'skills_dir = "/skills"', "skills_dir"),
        (QUIET + '[[environment.mcp_servers]]\nname = "a"\nurl = "http://a"', 'mcp_servers: a: transport = "sse"'),
        (QUIET + '[[environment.mcp_servers]]\nname = "a"\ntransport = "stdio"', "mcp_servers: a: command is missing"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]', "allowed_hosts"),
        (QUIET + '[agent]\nnetwork_mode = "public"', "[agent] network_mode = 'public'"),
        (QUIET + '[verifier]\nnetwork_mode = "public"', "[verifier] network_mode = 'public'"),
        (QUIET + '[agent]\nallowed_hosts = ["a.org"]', "[agent] allowed_hosts"),
        (
            QUIET + '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\nnetwork_mode = "no-network"',
            "separate",
        ),
        (QUIET + "[verifier.environment]\ncpus = 1", "[verifier.environment] network_mode"),
        (QUIET + '[[verifier.collect]]\ncommand = "x"\nservice = "db"', "service 'db'"),
        ('artifacts = [{ source = "/a", service = "db" }]\n' + QUIET, "service 'db'"),
        ('artifacts = ["../a"]\n' + QUIET, "'../a'"),
        ('artifacts = [{ source = "/a", destination = "../b" }]\n' + QUIET, "'../b'"),
        ('artifacts = [{ source = "/a", exclude = ["b"] }]\n' + QUIET, "exclude"),
        (QUIET + '[environment.env]\nKEY = "${ROLLBOOK_TEST_NOT_SET}"', "ROLLBOOK_TEST_NOT_SET is not set"),
        (QUIET + 'memory = "lots"', "memory = 'lots'"),
        (QUIET + 'memory = "1G"\nmemory_mb = 512', "memory = '1G' contradicts memory_mb = 512"),
        (QUIET + 'storage = "-1G"', "storage = '-1G'"),
        (QUIET + "cpus = 0", "cpus = 0"),
        (QUIET + "cpus = 50000", "[environment] cpus = 50000: give a number from 0.01 to 4096"),
        (QUIET + "memory_mb = 1", "[environment] memory_mb = 1"),
        (QUIET + "memory_mb = 99999999999999", "memory_mb = 99999999999999"),
        (QUIET + "storage_mb = 99999999999999", "storage_mb = 99999999999999"),
        (QUIET + 'docker_image = "--help"', "docker_image = '--help'"),
        (QUIET + 'docker_image = "UPPER CASE"', "docker_image = 'UPPER CASE'"),
        (QUIET + '[environment.env]\n"=x" = "1"', "[environment.env] '=x'"),
        (QUIET + '[verifier.env]\n"A B" = "1"', "[verifier.env] 'A B'"),
        (QUIET + '[agent]\nuser = "-x"', "[agent] user = '-x'"),
        (QUIET + '[verifier]\nuser = "-x"', "[verifier] user = '-x'"),
        (QUIET + "cpus = nan", "cpus = nan"),
        (QUIET + "build_timeout_sec = inf", "build_timeout_sec = inf"),
        (QUIET + "[agent]\ntimeout_sec = 0", "[agent] timeout_sec = 0"),
        (QUIET + "[verifier]\ntimeout_sec = -1", "[verifier] timeout_sec = -1"),
        (QUIET + '[[verifier.collect]]\ncommand = "x"\ntimeout_sec = nan', "[[verifier.collect]] timeout_sec = nan"),
        (QUIET + '[environment.healthcheck]\ncommand = "x"\nretries = 0', "[environment] healthcheck retries = 0"),
        (QUIET + '[environment.healthcheck]\ncommand = "x"\ninterval_sec = -1', "interval_sec = -1"),
        ('schema_version = "2.0"\n' + QUIET, "schema_version = '2.0'"),
        ('artifacts = ["/"]\n' + QUIET, "'/'"),
        (HTTP_SERVER + 'url = "http://elsewhere:80/mcp"', "url = 'http://elsewhere:80/mcp'"),
        (HTTP_SERVER + 'url = "https://localhost/mcp"', "url = 'https://localhost/mcp'"),
        (HTTP_SERVER, "url = None"),
        (HTTP_SERVER + 'url = "http://localhost/"\nheaders = { A = "${B}" }', "headers"),
        (
            QUIET + '[verifier.environment]\nnetwork_mode = "no-network"\nenv = { A = "${ROLLBOOK_TEST_NOT_SET}" }',
            "[verifier.environment.env] A: the variable ROLLBOOK_TEST_NOT_SET is not set",
        ),
        (QUIET + '[[steps]]\nname = "a"', "steps a: instruction.md is missing"),
        (QUIET + '[verifier.env]\n"A-B" = "1"', "[verifier.env] 'A-B': this is not the name of a variable"),
        (QUIET + '[verifier.env]\n"A.B" = "1"', "[verifier.env] 'A.B'"),
        (QUIET + '[solution.env]\n"A-B" = "1"', "[solution.env] 'A-B'"),
        (QUIET + '[[steps]]\nname = "a"\nverifier.env = { "A-B" = "1" }', "[steps a: verifier.env] 'A-B'"),
        (QUIET + '[verifier.env]\nA = "a\\u0000b"', "[verifier.env] A: the value has a NUL"),
        (QUIET + '[environment.env]\nA = "a\\u0000b"', "[environment.env] A: the value has a NUL"),
        (QUIET + '[environment.env]\nA = "a\\nb"', "[environment.env] A: the value must be one line of text"),
        (QUIET + 'workdir = "/a\\u0000b"', r"[environment] workdir = '/a\x00b'"),
        (QUIET + 'workdir = "/a\\nb"', r"[environment] workdir = '/a\nb'"),
        (QUIET + 'healthcheck = { command = "a\\u0000b" }', "[environment] healthcheck command: it has a NUL"),
        (QUIET + '[[verifier.collect]]\ncommand = "a\\u0000b"', "[[verifier.collect]] command: it has a NUL"),
        (QUIET + "cpus = 0.001", "[environment] cpus = 0.001: give a number from 0.01 to 4096"),
        (QUIET + "[verifier]\ntimeout_sec = 1e13", "[verifier] timeout_sec = 10000000000000.0"),
        ('artifacts = ["/a\\u0000b"]\n' + QUIET, r"artifacts: '/a\x00b'"),
        ('artifacts = [{ source = "/a", destination = "a\\u0000b" }]\n' + QUIET, r"destination 'a\x00b'"),
        (
            'artifacts = [{ source = "/a", destination = "d" }, { source = "/b", destination = "d" }]\n' + QUIET,
            "artifacts: /a and /b would be kept in one place, d: name another one",
        ),
        ('artifacts = ["/app", { source = "/b", destination = "app/c" }]\n' + QUIET, "/app and /b would be kept"),
        ('artifacts = ["/app/c/d", { source = "/b", destination = "app/c" }]\n' + QUIET, "/app/c/d and /b would"),
        (HTTP_SERVER + 'url = "http://localhost:99999/mcp"', "url = 'http://localhost:99999/mcp'"),
        (HTTP_SERVER + 'url = "http://[::1"', "url = 'http://[::1'"),
        (
            QUIET + '[[environment.mcp_servers]]\nname = "a"\ntransport = "stdio"\ncommand = "a\\u0000"',
            "mcp_servers: a: command: it has a NUL",
        ),
        (QUIET + "[metadata]\nreward = 5", "[metadata] reward = 5: give the name of a reward"),
        (QUIET + '[metadata]\nreward = ""', "[metadata] reward = ''"),
        (QUIET + "[task]\nname = 3", "[task] name = 3: give a text"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(tmp_path: Path, toml: str, names: str) -> None:
    found = refusals(make_task(tmp_path, toml))
    assert len(found) >= 1
    assert names in " ".join(found)


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        (QUIET + "colour = 1", "colour"),
        (QUIET + "[task]\nfoo = 1", "foo"),
        (QUIET + "env = {A = 1}", r'\[environment.env\] A = 1: give a text, as in A = "1"'),
        (QUIET + "[verifier.environment]\nenv = {B = true}", r"\[verifier.environment.env\] B = True"),
        ("[[steps]]\nname = 'a'\nverifier.env = {C = 1.5}\n" + QUIET, r"\[steps.verifier.env\] C = 1.5"),
        ("[verifyer]\n", "verifyer"),
        (QUIET + "memory_mb = 'much'", "memory_mb"),
        ("[environment\n", "task.toml"),
        (f"[metadata]\nx = {'[' * 3000}{']' * 3000}\n", "nested too deeply"),
    ],
)
def test_a_field_that_is_unknown_or_wrong_is_refused_with_its_file(tmp_path: Path, toml: str, names: str) -> None:
    make_task(tmp_path, toml)
    with pytest.raises(UsageError, match=names) as caught:
        read_task(tmp_path)
    assert "task.toml" in str(caught.value)


def test_missing_and_unsupported_files_are_refused(tmp_path: Path) -> None:
    make_task(tmp_path)
    (tmp_path / "environment" / "docker-compose.yaml").write_text("")
    (tmp_path / "tests" / "test.sh").unlink()
    (tmp_path / "instruction.md").unlink()
    (tmp_path / "trajectory.json").write_text("{}")
    (tmp_path / "tests" / ".harborignore").write_text("*.pyc")
    found = " ".join(refusals(tmp_path))
    for name in ("docker-compose.yaml", "tests/test.sh", "instruction.md", "trajectory.json", "tests/.harborignore"):
        assert name in found


def test_a_script_of_tests_with_the_lines_of_windows_is_refused_before_the_start(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (task / "tests" / "test.sh").write_bytes(b"#!/bin/bash\r\necho 1\r\n")
    (line,) = refusals(task)
    assert line.startswith("tests/test.sh: its lines end with CR LF, so it cannot run: convert it (sed ")
    subprocess.run(line[line.index("(") + 1 : -1], shell=True, cwd=task, check=True)
    assert (task / "tests" / "test.sh").read_bytes() == b"#!/bin/bash\necho 1\n"
    assert refusals(task) == []


def test_files_that_are_no_text_are_refused_by_their_name(tmp_path: Path) -> None:
    make_task(tmp_path / "task")
    (tmp_path / "task" / "instruction.md").write_bytes(b"\xff\xfe")
    assert refusals(tmp_path / "task") == ["instruction.md is not text in UTF-8"]
    (tmp_path / "list").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="list: this is not a list of task folders"):
        find_task_folders(tmp_path / "list")
    with pytest.raises(UsageError, match="harbor:: a name is missing: harbor:NAME"):
        resolve("harbor:")


def test_public_network_is_allowed_only_on_request(tmp_path: Path) -> None:
    make_task(tmp_path, "")
    assert refusals(tmp_path, allow_network=True) == []
    with pytest.raises(UsageError, match="--allow-network"):
        list(Harbor(str(tmp_path)).tasks())
    assert [task.prompt for task in Harbor(str(tmp_path), allow_network=True).tasks()] == ["Do it."]


def test_a_path_is_a_task_a_folder_of_tasks_or_a_list(tmp_path: Path) -> None:
    one, two = make_task(tmp_path / "set" / "one"), make_task(tmp_path / "set" / "two")
    assert find_task_folders(one) == [one.resolve()]
    assert find_task_folders(tmp_path / "set") == [one.resolve(), two.resolve()]
    (tmp_path / "list.txt").write_text("# chosen\nset/two  # this\n\n")
    assert find_task_folders(tmp_path / "list.txt") == [two.resolve()]
    (tmp_path / "list.txt").write_text("set/three\n")
    with pytest.raises(UsageError, match="line 1: set/three"):
        find_task_folders(tmp_path / "list.txt")
    for nothing in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="harbor:"):
            find_task_folders(nothing)


def test_steps_take_what_they_do_not_say_from_the_task() -> None:
    steps = read_task(TASKS / "two-steps").steps
    assert [step.name for step in steps] == ["first", "second"]
    assert steps[0].min_reward == {"reward": 1.0}
    assert steps[1].verifier.env == {"WORD": "two"}
    assert [folder.parent.name for folder in steps[1].tests] == ["two-steps", "second"]


def test_separate_tests_have_an_image_of_their_own_or_that_of_the_task() -> None:
    task: HarborTask = read_task(TASKS / "separate-image")
    own = task.verifier_image(task.steps[0])
    assert (own.bundled, own.build) == (True, str(TASKS / "separate-image" / "tests"))
    task = read_task(TASKS / "separate-tests")
    same = task.verifier_image(task.steps[0])
    assert (same.bundled, same.build) == (False, str(TASKS / "separate-tests" / "environment"))


SEPARATE = (
    QUIET
    + """
[verifier.environment]
docker_image = "of-the-task"
network_mode = "no-network"
[[steps]]
name = "one"
"""
)


@pytest.mark.parametrize(
    ("own_dockerfile", "own_table", "image", "build"),
    [
        (False, "", "of-the-task", ""),
        (True, "", "", "steps/one/tests"),
        (False, '[steps.verifier.environment]\nmemory_mb = 7\nnetwork_mode = "no-network"', "of-the-task", ""),
        (True, '[steps.verifier.environment]\ndocker_image = "of-the-step"', "of-the-step", ""),
    ],
)
def test_the_image_of_separate_tests_is_that_of_the_step_before_that_of_the_task(
    tmp_path: Path, own_dockerfile: bool, own_table: str, image: str, build: str
) -> None:
    make_task(tmp_path, SEPARATE + own_table)
    (tmp_path / "steps" / "one" / "tests").mkdir(parents=True)
    if own_dockerfile:
        (tmp_path / "steps" / "one" / "tests" / "Dockerfile").write_text("FROM x")
    task = read_task(tmp_path)
    found = task.verifier_image(task.steps[0])
    assert (found.image, found.build, found.bundled) == (image, str(tmp_path / build) if build else "", True)


def test_an_image_of_tests_may_have_them_inside(tmp_path: Path) -> None:
    make_task(tmp_path, QUIET + '[verifier]\nenvironment_mode = "separate"')
    (tmp_path / "tests" / "test.sh").rename(tmp_path / "tests" / "Dockerfile")
    assert refusals(tmp_path) == []


def test_the_mark_of_a_benchmark_is_not_shown_to_the_agent(tmp_path: Path) -> None:
    make_task(tmp_path)
    (tmp_path / "instruction.md").write_text("<!-- Canary 1 -->\n# canary 2\n\n# Title\n\nDo it.\n# canary 3\n")
    assert next(iter(Harbor(str(tmp_path)).tasks())).prompt == "# Title\n\nDo it.\n# canary 3\n"


def test_a_folder_that_was_edited_is_another_task(tmp_path: Path) -> None:
    from rollbook import RolloutFailed

    make_task(tmp_path)
    environment = Harbor(str(tmp_path))
    task = next(iter(environment.tasks()))
    environment.container_for(task)
    (tmp_path / "tests" / "test.sh").write_text("echo 1")
    with pytest.raises(RolloutFailed, match="edited since"):
        environment.container_for(task)


def test_the_name_of_the_reward_that_counts_is_not_empty(tmp_path: Path) -> None:
    make_task(tmp_path)
    with pytest.raises(UsageError, match=r"\?reward=: give the name of a reward"):
        resolve(f"harbor:{tmp_path}?reward=")
