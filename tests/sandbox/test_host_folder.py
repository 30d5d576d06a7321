"""A folder of the host as a session's own: the session reads and writes only there, and leaves no traps in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.errors import SandboxUnsupported, UsageError
from rollbook.sandbox import Limits, Sandbox, SandboxError
from rollbook.sandbox.inner import filesystem, kernel
from rollbook.sandbox.isolation import HostFolder
from support.alive import eventually, open_fds
from support.codetool import run_on
from support.restricted_host import can_enter, start_restricted_host

LIMITS = Limits(seconds=1.0, memory_mb=128, files_mb=1)
both_kinds = pytest.mark.parametrize("snapshot", [False, True], ids=["persistent", "snapshot"])


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    try:
        with Sandbox(LIMITS, size=1) as made, made.session(folder=tmp_path_factory.mktemp("first")):
            yield made
    except SandboxError as error:
        pytest.skip(f"no sandbox that mounts folders on this machine: {error}")


@both_kinds
def test_it_is_read_and_written_and_what_is_made_there_is_its_owners(
    box: Sandbox, tmp_path: Path, snapshot: bool
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "in.txt").write_text("given")
    with box.session(snapshot=snapshot, folder=tmp_path) as s:
        assert s.run_sync("open('in.txt').read()").value == "'given'"
        made = s.run_sync("import os\nopen('in.txt', 'a').write('!')\nos.mkdir('d')\nopen('d/out', 'w').write('made')")
        assert made.status == "ok"
        assert "folder of the host: total size open" in made.isolation
        lost = s.run_sync("os.rename('d/out', 'out')\nos._exit(1)")
        assert lost.state == ("rolled back" if snapshot else "lost")
        assert s.run_sync("open('out').read()").value == "'made'", "also after the state was lost"
    assert ((tmp_path / "in.txt").read_text(), (tmp_path / "out").read_text()) == ("given!", "made")
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {tmp_path.stat().st_uid}


def test_nothing_leads_out_of_it(box: Sandbox, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (inside / "up").symlink_to("../outside")
    (inside / "passwd").symlink_to("/etc/passwd")
    with box.session(folder=inside) as s:
        for code in (
            "open('up/secret')",
            "open('passwd')",
            "open('../outside/secret')",
            f"open({str(outside / 'secret')!r})",
            "import os\nos.symlink('/etc', 'etc')\nopen('etc/passwd')",
            "import os\nos.chroot('.')",
        ):
            result = s.run_sync(code)
            assert result.error, code
            assert result.error.type in ("FileNotFoundError", "PermissionError"), code
        assert s.run_sync("import os\nos.listdir('..'), os.getcwd()").value == "(['box'], '/home/box')"


TRAPS = {
    "chmod": "os.chmod('f', {mode})",
    "fchmod": "os.fchmod(f, {mode})",
    "fchmodat": "os.chmod('f', {mode}, dir_fd=os.open('.', 0))",
    "open": "os.open('new', os.O_CREAT | os.O_WRONLY, {mode})",
    "mknod": "os.mknod('new', {mode} | 0o100000)",
    "creat": "libc.creat(b'new', {mode}) >= 0 or int('no')",
    "fchmodat2": "libc.syscall(452, -100, b'f', {mode}, 0) == 0 or int('no')",
    "openat2": "libc.syscall(437, -100, b'new', struct.pack('=3Q', 0o101, {mode}, 0), 24) >= 0 or int('no')",
}


@pytest.mark.parametrize("mode", ["0o4755", "0o2755", "0o6777"])
def test_no_program_that_would_run_as_its_owner_is_left_there(box: Sandbox, tmp_path: Path, mode: str) -> None:
    start = "import ctypes, os, struct\nlibc = ctypes.CDLL(None)\nf = os.open('f', os.O_CREAT | os.O_RDWR, 0o755)\n"
    with box.session(folder=tmp_path) as s:
        s.run_sync(start)
        for name, code in TRAPS.items():
            result = s.run_sync(code.format(mode=mode))
            assert result.error, name
            assert result.error.type in ("PermissionError", "ValueError"), (name, result.error)
        assert s.run_sync("os.chmod('f', 0o640)\nos.chmod('f', 0o777)").status == "ok"
    assert {path.name: path.stat().st_mode & 0o6000 for path in tmp_path.iterdir()} == {"f": 0}


def test_a_program_there_cannot_be_started_and_a_file_has_its_limit(box: Sandbox, tmp_path: Path) -> None:
    several = Limits(seconds=1.0, memory_mb=128, files_mb=1, processes=4)
    with box.session(folder=tmp_path, limits=several) as s:
        s.run_sync("import os, subprocess\nopen('x', 'w').write('#!/bin/sh')\nos.chmod('x', 0o755)")
        started = s.run_sync("subprocess.run(['./x'])")
        assert started.error
        assert started.error.type == "PermissionError"
        large = s.run_sync(
            "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nopen('y', 'wb').write(bytes(2 << 20))"
        )
        assert large.status == "error"
    assert (tmp_path / "y").stat().st_size <= 1 << 20


def test_it_is_one_sessions_at_a_time(box: Sandbox, tmp_path: Path) -> None:
    with box.session(folder=tmp_path) as first:
        with pytest.raises(UsageError, match="another session uses it"), box.session(folder=tmp_path):
            pass
        assert first.run_sync("1").status == "ok"
    with box.session(folder=tmp_path) as next_one:
        assert next_one.run_sync("1").status == "ok"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/proc/self", "symbolic link"),
        ("/proc", "belongs to the system"),
        ("/proc/1", "belongs to the system"),
        ("/sys/fs/cgroup", "belongs to the system"),
        ("/", "belongs to the system"),
        ("/etc", "belongs to the system"),
        ("/usr/share", "belongs to the system"),
        ("/tmp", "belongs to the system"),
        ("/tmp/../etc", "belongs to the system"),
        ("/dev", "belongs to the system"),
        ("relative", "absolute path"),
        ("", "absolute path"),
        ("/no\0where", "absolute path"),
        ("/nowhere/at/all", "No such file"),
        (__file__, "Not a directory"),
        (str(Path(kernel.__file__).parent), "this package is in it"),
        (str(Path(kernel.__file__).parents[2]), "this package is in it"),
    ],
)
def test_what_no_session_may_have_is_a_clear_mistake(box: Sandbox, path: str, words: str) -> None:
    before = len(open_fds())
    with pytest.raises(UsageError, match=words), box.session(folder=path):
        pass
    assert len(open_fds()) <= before


def test_a_file_system_that_is_the_kernel_itself_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rollbook.sandbox.isolation._filesystem_type", lambda handle: "proc")
    with pytest.raises(UsageError, match="belongs to the system"):
        HostFolder(str(tmp_path))


def test_links_on_the_way_are_not_followed(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    for path in (tmp_path / "link", tmp_path / "link" / "below"):
        with pytest.raises(UsageError, match="symbolic link: give its real path"), box.session(folder=path):
            pass
    with pytest.raises(UsageError, match="give them or a folder"):
        box.session(folder=tmp_path, files={"a": b""})


def test_a_folder_that_was_exchanged_meanwhile_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    meant = os.open(tmp_path / "one", os.O_RDONLY)
    with pytest.raises(kernel.Unsupported, match="another folder now has that name"):
        filesystem.make_detached_mount(str(tmp_path / "two"), meant, None)
    os.close(meant)


def list_mounts() -> list[str]:
    """Return the mounts of this machine, without those of containers: other programs start and stop them meanwhile."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "/containers/" not in line]


def test_nothing_is_left_of_it(box: Sandbox, tmp_path: Path) -> None:
    with box.session(folder=tmp_path) as s:
        s.run_sync("1")
    fds, mounts = len(open_fds()), list_mounts()
    for _ in range(5):
        with box.session(folder=tmp_path) as s:
            s.run_sync("import os\nos._exit(0)")
            s.run_sync("1")
    assert eventually(lambda: len(open_fds()) <= fds, 5)
    assert list_mounts() == mounts


def test_a_launcher_that_is_gone_is_no_result(tmp_path: Path) -> None:
    with Sandbox(LIMITS, size=1) as box, box.session(folder=tmp_path) as s:
        s.run_sync("x = 1")
        os.kill(box._session_pool.get_launcher()._provider._child.pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="the sandbox broke"):
            run_on(s)
        assert s.run_sync("'x' in globals()").value == "False"


IN_A_FOLDER = (
    "import os, tempfile\n"
    "with tempfile.TemporaryDirectory() as folder:\n"
    "    os.chmod(folder, 0o700)\n"
    "    try:\n"
    "        with box.session(snapshot=SNAPSHOT, folder=folder) as s:\n"
    "            made = s.run_sync(\"open('a', 'w').write('made')\")\n"
    "        return [made.status, open(folder + '/a').read(), os.stat(folder + '/a').st_uid == os.getuid()]\n"
    "    except Exception as error:\n"
    "        return f'{type(error).__name__}: {error}'"
)


@both_kinds
@pytest.mark.parametrize("place", ["ordinary user", "lesser root"])
def test_an_ordinary_user_can_have_one_too(place: str, snapshot: bool) -> None:
    if not can_enter(place):
        pytest.skip("only root can put itself there")
    with start_restricted_host(place, LIMITS) as there:
        assert there.do(IN_A_FOLDER.replace("SNAPSHOT", str(snapshot))) == ["ok", "made", True]


@pytest.mark.parametrize("place", ["container root", "container user"])
def test_without_namespaces_it_is_refused(place: str) -> None:
    if not can_enter(place):
        pytest.skip("only root can put itself there")
    with start_restricted_host(place, LIMITS) as there:
        said = str(there.do(IN_A_FOLDER.replace("SNAPSHOT", "False")))
        assert said.startswith("SandboxUnsupported: folder /tmp/")
        assert said.endswith("without namespaces nothing can be mounted")


def test_where_owners_cannot_be_shifted_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tree: int, users: int | None = None) -> None:
        raise OSError(22, "mount_setattr: Invalid argument")

    monkeypatch.setattr(kernel, "mount_setattr", fail)
    monkeypatch.setattr(filesystem, "make_user_namespace", lambda owner, uid: os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(kernel.Unsupported, match="does not allow a temporary change of its owner"):
        filesystem.shift_owner(os.open(tmp_path, os.O_RDONLY), 1)


def test_a_sandbox_elsewhere_has_no_folders_of_ours(tmp_path: Path) -> None:
    box = Sandbox(LIMITS, size=1)
    box.remote = object()  # type: ignore[assignment]
    with pytest.raises(SandboxUnsupported, match="served elsewhere"):
        box._begin_session(LIMITS, False, {}, str(tmp_path))


def test_folders_of_two_sessions_do_not_lie_in_one_another(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "deep").mkdir(parents=True)
    two.mkdir()
    first, beside = HostFolder(str(one)), HostFolder(str(two))
    with pytest.raises(UsageError, match="uses it or a part of it"):
        HostFolder(str(one / "deep"))
    with pytest.raises(UsageError, match="uses it or a part of it"):
        HostFolder(str(tmp_path))
    first.close()
    HostFolder(str(one / "deep")).close()
    beside.close()
    HostFolder(str(tmp_path)).close()
