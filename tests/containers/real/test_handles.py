"""Real containers: commands, files, limits, snapshots, restarts, and what is left afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from base_image import CRASH_FIRST_PROCESS, IMAGE, RUNTIME, WithHost, list_left, list_of, podman_only

from rollbook.containers import Container, ContainerHost, ImageBuild, find_runtime, list_own_objects
from rollbook.containers.images import RECORD_SUFFIX, hold_lock
from rollbook.containers.owners import OWNER_LABEL, choose_own
from rollbook.containers.runtime import LabelledObject, work_folder
from rollbook.errors import ContainerError, Drained, ImageError
from rollbook.processes import run_event_loop

OWN = Container(image=IMAGE, memory_mb=128)


def test_commands_run_in_a_container_with_limits_and_without_network(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        assert (await handle.run("echo $((6*7)); pwd")).text == "42\n/\n"
        assert (await handle.run("cd /tmp; exit 5")).exit_code == 5
        assert (await handle.run("pwd; echo $X", workdir="/etc", env={"X": "it's"})).text == "/etc\nit's\n"
        assert (await handle.run("cat /proc/net/dev | grep -c eth")).text == "0\n"
        status = (await handle.run("cat /proc/self/status")).text
        assert "NoNewPrivs:\t1" in status
        assert (await handle.run("tail /dev/zero; echo $?")).text.endswith("137\n")
        assert (await handle.run("mknod /tmp/d b 8 0")).exit_code != 0
        if os.geteuid() == 0 and RUNTIME == "podman":  # with docker, that is a setting of its engine
            assert (await handle.run("cat /proc/self/uid_map")).text.split()[1] != "0"

    with_host(work)


def test_variables_are_for_the_processes_inside_and_not_for_the_runtime(with_host: WithHost, tmp_path: Path) -> None:
    for name in ("podman", "docker", "runc", "conmon"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/ran\n")
        (tmp_path / name).chmod(0o755)
    engine = {"DOCKER_HOST": "tcp://127.0.0.1:1", "CONTAINER_HOST": "tcp://127.0.0.1:1", "TMPDIR": "/nowhere"}
    inside = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LD_PRELOAD": "", "A": " '$x\\ =#é", **engine}

    async def work(host: ContainerHost) -> None:
        handle = await host.start(Container(image=IMAGE, env=inside))
        for env in ({}, {"HOME": "/nowhere"}):  # of the main process, and of another one
            shown = await handle.run("env", env=env)
            assert {f"{name}={value}" for name, value in {**inside, **env}.items()} <= set(shown.text.splitlines())
        assert (await handle.run('echo "$A"', env={"A": "x\ny"})).text == "x\ny\n"
        with pytest.raises(ValueError, match="the value of A must be one line of text"):
            await handle.open_shell(env={"A": "x\ny"})
        assert not (tmp_path / "ran").exists()

    with_host(work)


def test_files_of_any_size_are_written(with_host: WithHost) -> None:
    """Python fills an archive up with zeros, which podman does not read to their end."""

    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        for size in (0, 20_000, 30_000, 31_232, 61_000, 64_000, 128_000, 256_000):
            await handle.write("/file", b"\0" * size + b"!")
            assert (await handle.run("stat -c %s /file")).text == f"{size + 1}\n"

    with_host(work)


@pytest.mark.parametrize("content", [b"x" * 12_000_000, b"\0" * 12_000_000])
def test_large_files_need_no_memory_of_the_container_and_belong_to_who_writes(
    with_host: WithHost, content: bytes
) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(msgspec.structs.replace(OWN, memory_mb=64))
        await handle.write("/tmp/a dir/it's", content, user="nobody")
        assert (await handle.run("stat -c '%U %s' '/tmp/a dir/it'\\''s'")).text == f"nobody {len(content)}\n"
        with pytest.raises(OSError, match="Permission denied"):
            await handle.write("/etc/x", content, user="nobody")
        await handle.kill()
        with pytest.raises(ContainerError):
            await handle.write("/tmp/x", content)

    with_host(work)


def test_a_file_that_gives_nothing_is_an_error_of_the_file(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        await handle.run("mkfifo /tmp/pipe")
        with pytest.raises(OSError, match="could not be read within 1 s"):
            await handle.read("/tmp/pipe", timeout_s=1)
        with pytest.raises(OSError, match="could not be written within 1 s"):
            await handle.write("/tmp/pipe", b"x", timeout_s=1)
        assert (await handle.run("echo ok")).text == "ok\n"

    with_host(work)


def test_what_a_command_prints_is_not_kept_on_the_disk_of_this_machine(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        storage = await handle._runtime.find_storage()
        before = sum_logs(storage)
        assert (await handle.run("head -c 30000000 /dev/zero | tr '\\0' 'a'")).omitted > 29_000_000
        assert sum_logs(storage) - before < 1_000_000

    with_host(work)


def sum_logs(storage: Path) -> int:
    """Return the size of what runtimes keep of the output of containers."""
    logs = [*storage.glob("*containers/*/userdata/*.log"), *storage.glob("containers/*/*.log")]
    return sum(path.stat().st_size for path in logs if path.exists())


def kill_process(first: str, *words: str) -> None:
    """Kill one of the processes whose command begins with a word, and has others in it or in that of its parent."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            line, of = ((each / "cmdline").read_bytes().decode() for each in (path, path.parent / str(parent)))
            if line.startswith(first) and all(word in line + of for word in words):
                os.kill(int(path.name), signal.SIGKILL)


@podman_only
def test_a_commit_that_is_killed_leaves_no_temporary_files(
    with_host: WithHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        await handle.run("head -c 60000000 /dev/urandom > /data")
        commit = asyncio.create_task(handle.snapshot())
        while not list(tmp_path.glob("rollbook-files-*/commit-*/*")):
            assert not commit.done()
            await asyncio.sleep(0.01)
        kill_process("podman\0commit", handle.name)
        with pytest.raises(ContainerError):
            await commit
        assert list(tmp_path.glob("rollbook-files-*/*")) == []

    with_host(work)


FAKE_BASH = """mv /usr/bin/bash /usr/bin/real
cat > /usr/bin/bash <<'END'
#!/bin/sh
exec env 'BASH_FUNC_echo%%=() { builtin printf "9:memory:/\\n"; }' /usr/bin/real "$@"
END
chmod 755 /usr/bin/bash"""


def test_a_shell_that_an_agent_replaced_does_not_name_the_control_groups(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        groups = handle._groups
        assert (await handle.run(FAKE_BASH)).exit_code == 0
        snapshot = await handle.snapshot()
        await handle.kill()
        await handle.restart()
        assert (await handle.run("echo x")).text == "9:memory:/\n"
        assert handle._groups.splitlines() == groups.splitlines()
        again = await host.start(Container(image=snapshot, memory_mb=128))
        assert "9:memory:/" not in again._groups.splitlines()
        assert again._groups

    with_host(work)


def test_a_late_command_is_killed_with_everything_it_started(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        shell = await handle.open_shell()
        await shell.run("cd /tmp; kept=1; sleep 1001 &", 30)
        await asyncio.sleep(0.1)
        result = await shell.run("echo begun; (setsid sleep 1002 &); sleep 1003", 0.5)
        assert result.text.startswith("begun\n")
        assert (result.timed_out, result.shell_ended) == (True, False)
        assert (await shell.run("pwd; echo $kept", 30)).text == "/tmp\n1\n"
        alive = (await handle.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).text
        assert "sleep 1001" in alive  # from an earlier command: a server that the agent started goes on
        assert "sleep 1002" not in alive
        assert "sleep 1003" not in alive

    with_host(work)


def test_files_go_in_and_out(with_host: WithHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))

    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        for data in (b"", b"it's\n", b"nul \0 \xff", b"x" * 300_000):
            await handle.write("/new dir/file", data)
            assert await handle.read("/new dir/file") == data
        with pytest.raises(FileNotFoundError):
            await handle.read("/none")
        with pytest.raises(ValueError, match="larger than 10 bytes"):
            await handle.read("/new dir/file", max_bytes=10)
        (tmp_path / "in" / "sub").mkdir(parents=True)
        (tmp_path / "in" / "sub" / "a.sh").write_text("echo a")
        (tmp_path / "in" / "sub" / "a.sh").chmod(0o755)
        await handle.upload(tmp_path / "in", "/data")
        assert (await handle.run("/data/sub/a.sh; stat -c %u /data/sub")).text == "a\n0\n"
        await handle.run("ln -s /etc/passwd /data/link; mkfifo /data/fifo; echo b > /data/b")
        await handle.download("/data", tmp_path / "out")
        found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
        assert found == ["data/b", "data/sub/a.sh"]
        with pytest.raises(FileNotFoundError):
            await handle.download("/none", tmp_path / "out2")
        with pytest.raises(ValueError, match="larger"):
            await handle.download("/data", tmp_path / "out3", max_bytes=100)
        assert list((tmp_path / "temporary").glob("*/*")) == []

    with_host(work)


def test_files_keep_their_permissions_on_the_way_out_and_in(with_host: WithHost, tmp_path: Path) -> None:
    make = "mkdir /data; cd /data; echo echo ran >a; cp a b; cp a c; chmod 4755 a; chmod 640 b; chmod 0 c; chmod 1777 ."

    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        await handle.run(make)
        await handle.download("/data", tmp_path)
        modes = {path.name: oct(path.stat().st_mode & 0o7777) for path in [*tmp_path.iterdir(), *tmp_path.glob("*/*")]}
        assert modes == {"data": "0o777", "a": "0o755", "b": "0o640", "c": "0o600"}
        await handle.upload(tmp_path / "data", "/again")
        assert (await handle.run("cd /again; ./a; stat -c '%a %u' a b")).text == "ran\n755 0\n640 0\n"

    with_host(work)


def test_what_is_written_to_a_volume_of_the_image_counts_as_storage(with_host: WithHost, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nVOLUME /data\n")

    async def work(host: ContainerHost) -> None:
        handle = await host.start(Container(build=str(tmp_path), storage_mb=20))
        with pytest.raises(ContainerError, match="storage_mb=20"):
            await handle.run("for i in 1 2 3; do head -c 10000000 /dev/zero > /data/$i; done; sleep 30")
        assert await handle.find_limit() == "storage_limit"

    with_host(work)


def test_other_users_run_commands(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        assert (await handle.run("id -u", user="nobody")).text == "65534\n"
        assert (await handle.run("touch /root/x", user="nobody")).exit_code != 0
        assert (await handle.run("id -u")).text == "0\n"

    with_host(work)


def test_a_snapshot_has_the_files_with_their_owners_and_no_processes(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        first = await host.start(OWN)
        await first.run("echo kept > /file; chown 5:6 /file; chmod 4755 /file; sleep 1000 &")
        second = await host.start(Container(image=await first.snapshot(), memory_mb=128))
        assert (await second.run("stat -c '%u %g %a' /file; cat /file")).text == "5 6 4755\nkept\n"
        assert "sleep" not in (await second.run("cat /proc/[0-9]*/comm")).text

    with_host(work)


def test_a_restart_ends_every_process_and_keeps_the_files(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        await handle.run("echo kept > /file; (setsid sleep 1000 &) ; nohup sleep 1001 &")
        await handle.kill()
        with pytest.raises(ContainerError):
            await handle.run("true")
        await handle.restart()
        assert (await handle.run("cat /file")).text == "kept\n"
        assert "sleep" not in (await handle.run("cat /proc/[0-9]*/comm")).text

    with_host(work)


def test_hundreds_of_processes_with_little_cpu_time_end_at_once(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(Container(image=IMAGE, memory_mb=256, cpus=0.5))
        show_quota = "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null"
        bomb = asyncio.create_task(handle.run("f() { f | f & }; f; f; sleep 100", timeout_s=100))
        while await handle.find_limit() != "process_limit":
            await asyncio.sleep(0.1)
        await host.runtime.require("update", "--cpus", "0.01", handle.name)
        began = time.monotonic()
        await handle.kill()
        assert time.monotonic() - began < 10
        await asyncio.gather(bomb, return_exceptions=True)
        await handle.restart()
        assert not (await handle.run(show_quota)).text.startswith(("-1", "max"))

    with_host(work)


def test_a_container_that_dies_is_an_error_and_no_result(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        running = asyncio.create_task(handle.run("sleep 100"))
        await asyncio.sleep(0.3)
        await host.runtime.call("kill", handle.name)
        with pytest.raises(ContainerError, match="ended"):
            await running
        assert await handle.find_limit() == ""

    with_host(work)


def test_only_a_crash_of_the_first_process_is_what_the_code_inside_did(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        crashing, killed, stopped = [await host.start(OWN) for _ in range(3)]
        with pytest.raises(ContainerError):
            await crashing.run(CRASH_FIRST_PROCESS, timeout_s=60)
        assert await crashing.find_limit() == "container_crash"
        os.kill(await killed.main_pid(), signal.SIGKILL)
        await host.runtime.call("stop", "--time", "1", stopped.name)  # SIGTERM, then SIGKILL
        for handle in (killed, stopped):
            with pytest.raises(ContainerError):
                await handle.run("true")
            assert await handle.find_limit() == ""

    with_host(work)


@pytest.mark.parametrize("name", ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv"])
def test_files_that_the_runtime_mounts_count_as_storage(
    with_host: WithHost, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("rollbook.containers.handle.STORAGE_CHECK_S", 0.5)

    async def work(host: ContainerHost) -> None:
        handle = await host.start(msgspec.structs.replace(OWN, storage_mb=10))
        await handle.run("head -c 6000000 /dev/zero > /root/x")
        with pytest.raises(ContainerError, match="wrote more than storage_mb=10"):
            await handle.run(f"head -c 6000000 /dev/zero > {name}; ls -l {name}; sleep 20", timeout_s=30)
        assert await handle.find_limit() == "storage_limit"

    with_host(work)


DELETE_AND_WRITE = """python3 -c '
import os, time
files = []
for number in range(5):
    files.append(open(f"/root/{number}", "wb", buffering=0))
    os.unlink(f"/root/{number}")
    files[-1].write(bytes(8000000))
time.sleep(60)'"""


def test_empty_files_count_as_storage(with_host: WithHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.containers.handle.STORAGE_CHECK_S", 0.5)

    async def work(host: ContainerHost) -> None:
        handle = await host.start(msgspec.structs.replace(OWN, storage_mb=20))
        with pytest.raises(ContainerError, match="wrote more than storage_mb=20"):
            await handle.run("mkdir /many; cd /many; for i in {1..40000}; do : > $i; done; sleep 30")
        assert await handle.find_limit() == "storage_limit"

    with_host(work)


def test_deleted_files_that_are_open_count_as_storage(with_host: WithHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.containers.handle.STORAGE_CHECK_S", 0.5)

    async def work(host: ContainerHost) -> None:
        handle = await host.start(msgspec.structs.replace(OWN, storage_mb=20))
        with pytest.raises(ContainerError, match="wrote more than storage_mb=20"):
            await handle.run(DELETE_AND_WRITE, timeout_s=15)
        assert await handle.find_limit() == "storage_limit"

    with_host(work)


EAT_MEMORY = "tail /dev/zero"


@pytest.mark.parametrize(
    ("commands", "limit"),
    [
        ([EAT_MEMORY, "sleep 4; touch /ready; sleep 100"], ""),
        ([f"{EAT_MEMORY}; sleep 4; touch /ready; sleep 100"], ""),
        ([EAT_MEMORY, f"sleep 4; echo 1000 > /proc/1/oom_score_adj; {EAT_MEMORY}"], "memory_limit"),
    ],
)
def test_only_a_kill_because_of_memory_that_ended_the_container_is_its_limit(
    with_host: WithHost, commands: list[str], limit: str
) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(msgspec.structs.replace(OWN, memory_mb=40))
        shell = await handle.open_shell()
        await handle.run("head -c 20000000 /dev/zero > /dev/shm/x")  # for the kernel the first process is the largest
        for command in commands[:-1]:
            assert (await shell.run(command, 60)).exit_code == 137
        running = asyncio.create_task(shell.run(commands[-1], 60))
        while not limit and (await handle.run("[ -e /ready ]")).exit_code:
            await asyncio.sleep(0.2)
        if not limit:
            await host.runtime.call("kill", handle.name)
        with pytest.raises(ContainerError):
            await running
        assert await handle.find_limit() == limit

    with_host(work)


@pytest.mark.parametrize(
    ("container", "why"),
    [
        (Container(image="localhost/rollbook-test/none:1"), "not on this machine and cannot be pulled"),
        pytest.param(Container(image=IMAGE, workdir="/nope"), "/nope", marks=podman_only),  # docker makes the folder
        (Container(image=IMAGE, user="nobody-here"), "nobody-here"),
    ],
)
def test_a_wrong_image_workdir_or_user_is_an_image_error(with_host: WithHost, container: Container, why: str) -> None:
    async def work(host: ContainerHost) -> None:
        with pytest.raises(ImageError, match=why):
            await host.start(container)

    with_host(work)


def test_builds_are_made_once_for_all_who_ask_at_the_same_time(with_host: WithHost, tmp_path: Path) -> None:
    stamp = str(time.time_ns())
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo {stamp} && date +%N > /made\n")

    async def work(host: ContainerHost) -> None:
        image = ImageBuild(str(tmp_path)).image
        asked = Container(build=str(tmp_path))
        try:
            prepared = await asyncio.gather(*(host.prepare(asked) for _ in range(3)))
            assert {each.image for each in prepared} == {image}
            first = await host.start(asked)
            made = (await first.run("cat /made")).text
            assert (await (await host.start(asked)).run("cat /made")).text == made
            (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo {stamp} && false\n")
            with pytest.raises(ImageError, match="cannot be built"):
                await host.prepare(asked)
        finally:
            await host.runtime.call("image", "rm", "--force", image)

    with_host(work)


KILLED_BUILD = """
import asyncio, sys
from rollbook.containers import Container, ContainerHost
async def main():
    host = ContainerHost()
    await host.open()
    print("ready", flush=True)
    try:
        await host.prepare(Container(build=sys.argv[1], build_timeout_s=float(sys.argv[2])))
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    await host.close()
asyncio.run(main())
"""


def start_build(folder: Path, timeout_s: float = 60) -> tuple[subprocess.Popen[str], str]:
    """Build an image whose Dockerfile sleeps; return when it does, with the number by which its processes are found."""
    seconds = str(1_000_000 + time.time_ns() % 1_000_000)
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN sleep {seconds}\n")
    argv = [sys.executable, "-c", KILLED_BUILD, str(folder), str(timeout_s)]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert worker.stdout
    worker.stdout.readline()
    wait_until(lambda: len(find_processes(f"sleep {seconds}")) == 2)  # the shell and sleep
    return worker, seconds


def find_processes(words: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if words in path.read_text(errors="replace").replace("\0", " "):
                found.append(int(path.parent.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def list_working_containers() -> set[str]:
    if RUNTIME != "podman":
        return set()
    command = ["podman", "ps", "--all", "--external", "--no-trunc", "--format", "{{.ID}} {{.Command}}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line for line in lines if line.endswith(" buildah")}


@podman_only
@pytest.mark.parametrize("killed", ["podman", "late"])
def test_a_build_that_is_killed_or_late_leaves_nothing(tmp_path: Path, killed: str) -> None:
    before = list_working_containers()
    worker, seconds = start_build(tmp_path, 5 if killed == "late" else 60)
    made = list_working_containers() - before
    assert made
    if killed == "podman":
        (podman,) = find_children(worker.pid, "podman build")
        os.kill(podman, signal.SIGKILL)
    said = worker.communicate()[0]
    # A build that somebody killed is a failure of this machine, and is tried again.
    assert said.startswith("ContainerError" if killed == "podman" else "ImageError"), said
    assert find_processes(f"sleep {seconds}") == []
    wait_until(lambda: not made & list_working_containers())  # others may be building on this machine


def test_a_build_whose_worker_is_killed_is_ended_by_its_guard(tmp_path: Path) -> None:
    before = list_working_containers()
    worker, seconds = start_build(tmp_path)
    made = list_working_containers() - before
    (client,) = find_children(worker.pid, f"{RUNTIME} build")
    worker.kill()
    worker.communicate()
    wait_until(lambda: not Path(f"/proc/{client}").exists() and find_processes(f"sleep {seconds}") == [])
    wait_until(lambda: not made & list_working_containers())  # others may be building on this machine
    wait_until(lambda: not find_build_records(tmp_path))


def find_build_records(folder: Path) -> list[Path]:
    image = ImageBuild(str(folder)).image
    return list(work_folder().glob(f"{hashlib.sha256(image.encode()).hexdigest()[:32]}{RECORD_SUFFIX}"))


@podman_only
@pytest.mark.parametrize("who", ["next start", "who waits"])
def test_a_build_whose_worker_and_guard_are_killed_is_ended(with_host: WithHost, tmp_path: Path, who: str) -> None:
    before = list_working_containers()
    worker, seconds = start_build(tmp_path)
    made = list_working_containers() - before
    assert made
    (guard,) = find_children(worker.pid, "containers.guard")

    async def wait_for_image(host: ContainerHost) -> None:
        waiting = asyncio.create_task(host.prepare(Container(build=str(tmp_path))))
        await asyncio.sleep(1)
        kill_both()
        await asyncio.to_thread(wait_until, lambda: len(find_processes(f"sleep {seconds}")) == 2 and own_build())
        waiting.cancel()
        await asyncio.wait({waiting})

    def own_build() -> bool:
        return bool(find_children(os.getpid(), "podman build"))

    def kill_both() -> None:
        os.kill(guard, signal.SIGKILL)
        worker.kill()
        worker.communicate()

    async def only_start(host: ContainerHost) -> None:
        assert find_processes(f"sleep {seconds}") == []

    if who == "next start":
        kill_both()
        with_host(only_start)
    else:
        with_host(wait_for_image)
    assert find_processes(f"sleep {seconds}") == []
    wait_until(lambda: not made & list_working_containers())  # others may be building on this machine


def test_who_waits_for_the_build_of_another_has_a_deadline(with_host: WithHost, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo {time.time_ns()}\n")

    async def work(host: ContainerHost) -> None:
        async with hold_lock(ImageBuild(str(tmp_path)).image, 5):
            with pytest.raises(ContainerError, match="others on this machine have been building or pulling it for 1 s"):
                await host.prepare(Container(build=str(tmp_path), build_timeout_s=1))

    with_host(work)


def test_a_rollout_that_waits_for_its_image_is_given_up_when_drained(with_host: WithHost, tmp_path: Path) -> None:
    seconds = str(1_000_000 + time.time_ns() % 1_000_000)
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN sleep {seconds}\n")
    wanted = Container(build=str(tmp_path))

    async def work(host: ContainerHost) -> None:
        starting = [asyncio.create_task(host.start(wanted, f"task#{i}")) for i in range(3)]
        await asyncio.to_thread(wait_until, lambda: bool(find_processes(f"sleep {seconds}")))
        host.stop_waiting()
        given_up = await asyncio.gather(*starting, return_exceptions=True)
        assert [type(each) for each in given_up] == [Drained] * 3
        await asyncio.to_thread(wait_until, lambda: find_processes(f"sleep {seconds}") == [])
        with pytest.raises(Drained):
            await host.start(Container(image=IMAGE), "task#4")
        # What judges the work of a rollout that is being finished still gets its container.
        await host.remove(await host.start(Container(image=IMAGE)))

    with_host(work)


PODMAN_THAT_DIES = """#!/bin/bash
if [ "$1" = rm ] && [ ! -e {marker} ]; then touch {marker}; kill -9 $$; fi
exec {podman} "$@"
"""


@podman_only
def test_a_container_is_removed_although_the_command_that_removes_it_is_killed(
    with_host: WithHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        real, marker = shutil.which("podman"), tmp_path / "killed"
        (tmp_path / "podman").write_text(PODMAN_THAT_DIES.format(marker=marker, podman=real))
        (tmp_path / "podman").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        await host.remove(handle)
        assert marker.exists()
        assert await list_own_objects(host.runtime) == []

    with_host(work)


@podman_only
def test_a_container_that_is_cancelled_or_killed_while_it_starts_leaves_nothing(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        for number in range(6):
            before = list_own_states()
            starting = asyncio.create_task(host.start(OWN))
            while list_own_states() == before:
                await asyncio.sleep(0.002)
            if number % 2:
                starting.cancel()
            else:  # the client is killed after runc has made the container, and before it runs
                (handle,) = host._handles
                for pid in find_children(os.getpid(), f"run --annotation.*{handle.name}"):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.wait({starting})
            await host.close_containers()

    with_host(work)
    assert list_own_states() == []


def list_own_states() -> list[LabelledObject]:
    """Return what runc knows of this process's containers; others may be at work on this machine."""
    return choose_own(find_runtime("podman").list_states(OWNER_LABEL))


def find_children(parent: int, pattern: str) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent), "-f", pattern], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


WORKER = """
import asyncio, sys
from rollbook.containers import Container, ContainerHost
async def main():
    host = ContainerHost()
    await host.open()
    handle = await host.start(Container(image=sys.argv[1]))
    image = await handle.snapshot()
    other = await host.start(Container(image=image))
    print("ready", host._guard.pid, handle._main.pid, flush=True)
    await other.run("sleep 1000", timeout_s=1000)
asyncio.run(main())
"""


def start_worker() -> tuple[subprocess.Popen[str], int, int]:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, IMAGE], stdout=subprocess.PIPE, text=True)
    assert worker.stdout
    _, guard, client = worker.stdout.readline().split()
    return worker, int(guard), int(client)


def wait_until_nothing_is_left() -> None:
    deadline = time.monotonic() + 60
    while left := list_left():
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_nothing_is_left_after_the_worker_is_killed() -> None:
    worker, _, _ = start_worker()
    assert len(list_of(worker.pid)) == 3
    worker.kill()
    worker.communicate()
    wait_until_nothing_is_left()


def test_nothing_is_left_after_the_worker_and_its_guard_are_killed_and_another_starts(with_host: WithHost) -> None:
    worker, guard, client = start_worker()
    os.kill(guard, signal.SIGKILL)
    os.kill(client, signal.SIGKILL)
    worker.kill()
    worker.communicate()
    assert list_of(worker.pid)

    async def work(host: ContainerHost) -> None:
        return None

    with_host(work)  # it begins by removing what dead owners left, and ends with a look at what is left
    assert list_of(worker.pid) == []


DEEP = """
import asyncio, os, signal, subprocess, sys
from rollbook.containers import Container, ContainerHost
async def main():
    image, how = sys.argv[1:]
    host = ContainerHost()
    await host.open()
    if how != "start":
        handle = await host.start(Container(image=image, processes=128))
        command = "import os\\nfor _ in range(4000): os.mkdir('a'); os.chdir('a')"
        await handle.run(f'python3 -c "{command}"')
        if how == "die":
            os.kill(host._guard.pid, signal.SIGKILL)
            os._exit(0)
        await host.remove(handle)
    await (await host.start(Container(image=image))).run("true")
    await host.close()
asyncio.run(main())
"""


@podman_only
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into the files of a container")
@pytest.mark.parametrize("steps", [["remove"], ["die", "start"]])
def test_folders_deeper_than_podman_can_remove_leave_the_machine_usable(tmp_path: Path, steps: list[str]) -> None:
    # In a store of its own: podman could not be used any more with one that it fails to clean up.
    shared = subprocess.run(["podman", "info", "--format", "{{.Store.GraphRoot}}"], capture_output=True, text=True)
    lines = ["[storage]", 'driver = "overlay"', f'runroot = "{tmp_path}/run"', f'graphroot = "{tmp_path}/graph"']
    lines += ["[storage.options]", f'additionalimagestores = ["{shared.stdout.strip()}"]']
    (tmp_path / "storage.conf").write_text("\n".join(lines))
    variables = {**os.environ, "CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf")}
    try:
        for step in steps:
            worker = ["prlimit", "--nofile=2048:2048", sys.executable, "-c", DEEP, IMAGE, step]
            ended = subprocess.run(worker, env=variables, capture_output=True, text=True, check=False)
            assert (ended.returncode, ended.stderr) == (0, "")
        listed = subprocess.run(["podman", "ps", "--all", "--quiet"], env=variables, capture_output=True, check=True)
        assert listed.stdout == b""
        assert not list((tmp_path / "graph" / "overlay").glob("*/diff/a"))
    finally:
        subprocess.run(["umount", "--lazy", tmp_path / "graph" / "overlay"], check=False)


def test_nothing_of_a_living_owner_is_removed(with_host: WithHost) -> None:
    worker, _, _ = start_worker()
    try:
        before = list_of(worker.pid)

        async def work(host: ContainerHost) -> None:
            return None

        with_host(work)
        assert list_of(worker.pid) == before
    finally:
        worker.kill()
        worker.communicate()
    wait_until_nothing_is_left()


def test_a_command_does_not_get_what_processes_of_earlier_commands_print(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        assert (await handle.run("(while :; do echo hello; sleep 0.02; done) & echo begun")).exit_code == 0
        await asyncio.sleep(0.2)
        for user in ("", "", "nobody"):
            assert (await handle.run("sleep 0.1; echo own", user=user)).text == "own\n"
        alive = (await handle.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).text
        assert "sleep 0.02" in alive or "while" in alive  # a server that somebody started goes on
        assert (await handle.run("(sleep 0.2; echo late) & exit 0")).exit_code == 0
        await asyncio.sleep(0.5)
        assert (await handle.run("echo next")).text == "next\n"

    with_host(work)


ODD_ATTRIBUTE = "import os; [os.setxattr(f'/app{each}', 'user.a=b', b'1') for each in ('', '/word', '/in')]"


@podman_only
def test_files_whose_attributes_no_archive_can_hold_are_copied_out_of_a_killed_container(
    with_host: WithHost, tmp_path: Path
) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        made = await handle.run(f'mkdir -p /app/in; echo hello > /app/word; python3 -c "{ODD_ATTRIBUTE}"')
        assert made.exit_code == 0
        with pytest.raises(FileNotFoundError, match="extended attribute"):
            await handle.download("/app", tmp_path / "running")
        await handle.kill()
        assert await handle.download("/app", tmp_path / "killed") == []
        assert (tmp_path / "killed/app/word").read_text() == "hello\n"
        assert (tmp_path / "killed/app/in").is_dir()

    with_host(work)


STOP_ALL = """setsid nohup python3 -c "
import os, signal
while True:
    for name in os.listdir('/proc'):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try: os.kill(int(name), signal.SIGSTOP)
            except OSError: pass
" > /dev/null 2>&1 &"""


def test_a_start_inside_that_is_stopped_and_then_cancelled_does_not_block_the_runtime(with_host: WithHost) -> None:
    async def work(host: ContainerHost) -> None:
        handle = await host.start(OWN)
        await handle.run(STOP_ALL)
        for _ in range(3):  # it is not always stopped half-way
            opening = asyncio.create_task(handle.open_shell())
            await asyncio.sleep(3)
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await opening
            async with asyncio.timeout(30):
                assert await handle.is_running()

    with_host(work)


def test_a_shell_that_nobody_closed_and_whose_processes_print_does_not_disturb_the_end_of_the_loop() -> None:
    async def main() -> None:
        host = ContainerHost()
        await host.open()
        try:
            shell = await (await host.start(OWN)).open_shell()
            await shell.run("yes &", 20)
            await asyncio.sleep(1)
        finally:
            await host.close()

    run_event_loop(main)  # uvloop fails at its end if a pipe is open and unread
    assert list_left() == []


@pytest.mark.parametrize("command", ["exec 9>/tmp/lock; flock 9; echo done", "exec 9>&-; echo done"])
def test_a_command_may_use_descriptor_9_as_scripts_do(with_host: WithHost, command: str) -> None:
    async def work(host: ContainerHost) -> None:
        shell = await (await host.start(OWN)).open_shell()
        result = await shell.run(command, 20)
        assert (result.text, result.timed_out) == ("done\n", False)
        assert (await shell.run("printf() { echo mine; }; printf x; cat /tmp/lock 2>/dev/null", 20)).text == "mine\n"
        assert (await shell.run("echo on", 20)).text == "on\n"

    with_host(work)
