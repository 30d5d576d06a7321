"""Put back what the tests of a task rely on: the shell, its libraries and the basic programs, as the image has them.

An agent that is root in its container can replace bash, put another `cat` before the real one, or preload a library
into every program. Before tests run, every such change is undone with the files of the image. Other programs and
libraries, which an agent may have been asked to install or change, stay as it left them.
"""

from __future__ import annotations

import io
import re
import struct
import tarfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath

import msgspec

from rollbook.containers.container import Container
from rollbook.containers.handle import ContainerHandle
from rollbook.containers.host import ContainerHost
from rollbook.containers.shell import quote
from rollbook.errors import ContainerError, RolloutFailed

PROGRAMS = frozenset(
    [
        "[",
        "awk",
        "basename",
        "bash",
        "bunzip2",
        "cat",
        "chgrp",
        "chmod",
        "chown",
        "chroot",
        "cksum",
        "cmp",
        "comm",
        "cp",
        "csplit",
        "cut",
        "dash",
        "date",
        "dd",
        "df",
        "diff",
        "dir",
        "dirname",
        "du",
        "echo",
        "egrep",
        "env",
        "expand",
        "expr",
        "factor",
        "false",
        "fgrep",
        "find",
        "fmt",
        "fold",
        "gawk",
        "grep",
        "groups",
        "gzip",
        "head",
        "hostname",
        "id",
        "install",
        "join",
        "kill",
        "link",
        "ln",
        "logname",
        "ls",
        "mawk",
        "md5sum",
        "mkdir",
        "mkfifo",
        "mknod",
        "mktemp",
        "mv",
        "nice",
        "nl",
        "nohup",
        "nawk",
        "nproc",
        "numfmt",
        "od",
        "paste",
        "pathchk",
        "pidof",
        "pr",
        "printenv",
        "printf",
        "ps",
        "ptx",
        "pwd",
        "readlink",
        "realpath",
        "rm",
        "rmdir",
        "sed",
        "seq",
        "setpriv",
        "sh",
        "sha1sum",
        "sha224sum",
        "sha256sum",
        "sha384sum",
        "sha512sum",
        "shred",
        "shuf",
        "sleep",
        "sort",
        "split",
        "stat",
        "stdbuf",
        "stty",
        "su",
        "sudo",
        "sum",
        "sync",
        "tac",
        "tail",
        "tar",
        "tee",
        "test",
        "timeout",
        "touch",
        "tr",
        "true",
        "truncate",
        "tsort",
        "tty",
        "uname",
        "unexpand",
        "uniq",
        "unlink",
        "users",
        "wc",
        "which",
        "which.debianutils",
        "who",
        "whoami",
        "xargs",
        "yes",
        "zcat",
        "busybox",
    ]
)
"""The shell and the programs that test scripts are made of."""

LIBRARIES = re.compile(
    r"(?:ld-linux.*|ld-musl.*|ld\.so.*|ld-2.*|lib(?:c|m|dl|rt|pthread|tinfo|readline|selinux|pcre2-8|acl|attr|cap|gmp|"
    r"mpfr|sigsegv|crypto|resolv|nss_\w+|pam\w*|audit|cap-ng|crypt|proc-?2|procps)[-.].*so.*|pam_\w+\.so)"
)
"""The libraries that those programs load, and the program that loads them."""

PROGRAM_FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
LIBRARY_FOLDERS = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib")
SETTING_FOLDERS = ("/etc/alternatives", "/etc/pam.d", "/etc/profile.d", "/etc/security")
MACHINE_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
SYSTEM_FOLDERS = ("/usr", "/etc", *PROGRAM_FOLDERS, *LIBRARY_FOLDERS, *MACHINE_FOLDERS, *SETTING_FOLDERS)
"""Folders without which no test runs; in most images those at the top are links to others. Outer folders first."""

SETTINGS = re.compile(
    r"/etc/(?:nsswitch\.conf|environment|login\.defs|profile|profile\.d/.+|bash\.bashrc|bashrc|inputrc|pam\.conf|"
    r"security/[^/]+\.conf|pam\.d/(?:su|su-l|sudo|sudo-i|runuser|runuser-l|login|other|(?:common|system|password)-\w+))"
)
"""What the shell and the basic programs read in /etc. The rest of /etc is work of the agent: users, servers, hosts."""

STARTUP_FILES = frozenset(
    [".profile", ".bash_profile", ".bash_login", ".bashrc", ".inputrc", ".pam_environment", ".zshenv", ".zprofile"]
)
"""What a shell of a user reads first, in the user's home."""

PLUGINS = re.compile(r"(?:libnss_\w+\.so.*|pam_\w+\.so)")
"""Libraries that are loaded because a setting names them: one that the image lacks is none that tests need."""

MAX_FOLDER_BYTES = 8 << 30
USER_FILES = ("/etc/passwd", "/etc/group")
"""Files that the runtime reads itself: it starts no container in which one of them is a folder."""

PRELOAD, CACHE = "/etc/ld.so.preload", "/etc/ld.so.cache"


class Restoration(msgspec.Struct, frozen=True):
    """A path to put back, and where the image has what belongs there; nothing: an empty file belongs there."""

    path: str
    source: str


def choose_restorations(
    changes: Mapping[str, str], search_path: Iterable[str], others: Iterable[str] = (), homes: Iterable[str] = ()
) -> list[Restoration]:
    """Return what of the changes of an agent is undone; `others` are more paths that must be those of the image."""
    folders = {*PROGRAM_FOLDERS, "/etc/alternatives", *search_path}
    others, homes = {PRELOAD, CACHE, *others}, {"/root", *homes}
    chosen = []
    for path, kind in changes.items():
        place = PurePosixPath(path)
        if path in others or SETTINGS.fullmatch(path) or _is_startup_file(place, homes):
            chosen.append(Restoration(path, path))
        elif (str(place.parent) in folders and place.name in PROGRAMS) or (
            path.startswith(tuple(f"{each}/" for each in LIBRARY_FOLDERS)) and LIBRARIES.fullmatch(place.name)
        ):
            chosen.append(Restoration(path, path if kind != "A" else f"*/{place.name}"))
    return chosen


def _is_startup_file(place: PurePosixPath, homes: Collection[str]) -> bool:
    at_home = str(place.parent) in homes or str(place.parent.parent) == "/home"
    return at_home and place.name in STARTUP_FILES


def _may_be_emptied(path: str) -> bool:
    """Whether a file that the image lacks is made empty, as nothing that tests need."""
    place = PurePosixPath(path)
    named = PLUGINS.fullmatch(place.name) or place.name in STARTUP_FILES
    return path == PRELOAD or bool(SETTINGS.fullmatch(path) or named)


async def restore_pristine_files(host: ContainerHost, handle: ContainerHandle, others: Iterable[str] = ()) -> list[str]:
    """Undo, in a container that was killed, what could speak for its tests; return the paths that were put back."""
    changes = await handle.changed_paths()
    folders = [each for each in SYSTEM_FOLDERS if changes.get(each) in ("C", "D")]
    others = [*others, *await handle.find_replaced_files(USER_FILES)]
    chosen = choose_restorations(changes, await handle.search_path(), others, await _find_homes(handle))
    if not folders and not chosen:
        return []
    image = Container(image=handle.container.image, memory_mb=handle.container.memory_mb, user="0")
    pristine = await host.start(image)
    try:
        lost = {each for each in folders if changes[each] == "D"} | set(await handle.find_replaced_folders(folders))
        restored = [each for each in folders if await _restore_folder(pristine, handle, each, lost)]
        restored += [each.path for each in chosen if await _restore(pristine, handle, each)]
    finally:
        await host.remove(pristine)
    return restored


async def _find_homes(handle: ContainerHandle) -> list[str]:
    """Return the homes of the users that the agent left."""
    try:
        text = (await handle.read_archived("/etc/passwd")).decode(errors="replace")
    except (OSError, ValueError, ContainerError):
        return []
    return [fields[5].rstrip("/") for fields in (line.split(":") for line in text.splitlines()) if len(fields) > 5]


async def _restore_folder(pristine: ContainerHandle, handle: ContainerHandle, path: str, lost: set[str]) -> bool:
    """Put back a folder that is lost, or a link to one that was changed; return whether that was needed."""
    if any(path.startswith(f"{outer}/") for outer in lost):
        return False  # it came back with the outer one
    if link := (await pristine.run(f"readlink {quote(path)}")).text.strip():
        await handle.put_archive("/", _archive(path, b"", link))
        return True
    if path not in lost or (await pristine.run(f"[ -d {quote(path)} ]")).exit_code:
        return False
    try:
        await pristine.copy_to(handle, path, max_bytes=MAX_FOLDER_BYTES)
    except (ContainerError, OSError, ValueError) as error:
        why = f"the agent replaced {path}, which cannot be put back ({error}): no test can be trusted there"
        raise RolloutFailed("verifier_error", "tests", why) from None
    return True


async def _restore(pristine: ContainerHandle, handle: ContainerHandle, wanted: Restoration) -> bool:
    source = await _find_source(pristine, wanted)
    if source and not (await pristine.run(f"[ -d {quote(source)} ] && [ ! -h {quote(source)} ]")).exit_code:
        return False  # a folder has only other times or permissions: what changed in it is listed too
    if wanted.path == CACHE and source and not await _redirects(pristine, handle):
        return False  # libraries that the agent installed are found by it
    if source is None and not _may_be_emptied(wanted.path):
        return False  # the image has no such program, so the tests do not expect one of it
    content = b"" if source is None else await _read_whole(pristine, source)
    link = (await pristine.run(f"readlink {quote(source)}")).text.strip() if source else ""
    await handle.put_archive("/", _archive(wanted.path, content, link if source == wanted.path else ""))
    return True


async def _find_source(pristine: ContainerHandle, wanted: Restoration) -> str | None:
    if not wanted.source.startswith("*/"):
        found = await pristine.run(f"[ -e {quote(wanted.source)} ] || [ -h {quote(wanted.source)} ]")
        return wanted.source if found.exit_code == 0 else None
    name = quote(wanted.source.removeprefix("*/"))
    places = " ".join(f"{each}/{name} {each}/*/{name}" for each in (*PROGRAM_FOLDERS, *LIBRARY_FOLDERS))
    listed = await pristine.run(f'for p in {places}; do [ -f "$p" ] && echo "$p" && break; done')
    return listed.text.strip() or None


async def _read_whole(handle: ContainerHandle, path: str) -> bytes:
    result = await handle.run(f"[ -f {quote(path)} ] && cat < {quote(path)}", max_bytes=1 << 28)
    return result.output if result.exit_code == 0 else b""


def _archive(path: str, content: bytes, link: str) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.mode = 0o755
        if link:
            entry.type, entry.linkname = tarfile.SYMTYPE, link
        else:
            entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


async def _redirects(pristine: ContainerHandle, handle: ContainerHandle) -> bool:
    """Return whether the cache of the loader names another file for one of the basic libraries than the image does."""
    try:
        before = read_loader_cache(await _read_whole(pristine, CACHE))
        now = read_loader_cache(await handle.read_archived(CACHE))
    except (FileNotFoundError, ValueError, ContainerError):
        return True
    return any(
        LIBRARIES.fullmatch(name) and path not in before.get(name, ()) for name, paths in now.items() for path in paths
    )


def read_loader_cache(data: bytes) -> dict[str, set[str]]:
    """Return which files glibc's cache of libraries names for each; ValueError if it is none."""
    start = data.find(b"glibc-ld.so.cache1.1")
    if start < 0:
        raise ValueError("no cache of the loader")
    (count,) = struct.unpack_from("<I", data, start + 20)
    found: dict[str, set[str]] = {}
    for number in range(min(count, 100_000)):
        try:
            _, key, value = struct.unpack_from("<iII", data, start + 48 + 24 * number)
        except struct.error:
            raise ValueError("the cache of the loader is cut off") from None
        found.setdefault(_text_at(data, start + key), set()).add(_text_at(data, start + value))
    return found


def _text_at(data: bytes, at: int) -> str:
    return data[at : data.find(b"\0", at)].decode(errors="replace")
