"""Put back what the tests of a task rely on: the shell, its libraries and the basic programs, as the image has them.

An agent that is root in its container can replace bash, put another `cat` before the real one, or preload a library
into every program. Before tests run, every such change is undone. Other programs and libraries, which an agent may
have been asked to install or change, stay as it left them.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import stat
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from string import Template
from typing import NamedTuple

from rollbook.containers.command_files import find_command_files, is_script
from rollbook.containers.handle import ContainerHandle
from rollbook.containers.layers import KERNEL_FOLDERS, Layers, is_in
from rollbook.errors import ContainerError

_PROGRAMS = """
[ arch awk b2sum base32 base64 basename basenc bash bunzip2 busybox bzcat bzcmp bzdiff bzegrep bzfgrep bzgrep
bzip2 bzless bzmore cat chcon chgrp chmod chown chroot cksum cmp column comm coreutils cp csplit cut dash date
dd df diff diff3 dir dircolors dirname du echo egrep env expand expr factor false fgrep find flock fmt fold gawk
getent getopt grep groups gunzip gzexe gzip head hexdump hostid hostname iconv id igawk install ischroot join
kill link ln locale logname ls mawk md5sum md5sum.textutils mesg mkdir mkfifo mknod mktemp more mountpoint mv nawk
nice nl nohup nproc numfmt od original-awk paste pathchk pgrep pidof pinky pkill pr printenv printf ps ptx pwd
rbash readlink realpath rev rgrep rm rmdir run-parts runcon runuser sdiff sed seq setpriv setsid sh sha1sum
sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty su sudo sum sync tac tail
tar tee tempfile test timeout touch tput tr true truncate tsort tty uname uncompress unexpand uniq unix_chkpwd unlink
unxz users vdir wc which which.debianutils who whoami xargs xxd xz xzcat yes zcat zcmp zdiff zegrep zfgrep zforce zgrep
zless zmore znew
"""
PROGRAMS = frozenset(_PROGRAMS.split())
"""The shell and the programs that test scripts are made of."""

LIBRARIES = re.compile(
    r"(?:ld-linux.*|ld-musl.*|ld\.so.*|ld-2.*|lib(?:c|m|mvec|dl|rt|util|anl|nsl|pthread|tinfo|ncursesw?|readline|selinux|"
    r"pcre2-8|acl|attr|cap|gmp|mpfr|sigsegv|crypto|resolv|nss_\w+|pam\w*|audit|cap-ng|crypt|proc-?2|procps|stdbuf|"
    r"mount|blkid|uuid|smartcols|lzma|bz2|zstd|lz4|gcrypt|gpg-error|systemd|econf|md|bsd)"
    r"[-.].*so.*|pam_\w+\.so)",
    re.DOTALL,
)
"""The libraries that those programs load, and the program that loads them."""

PLUGINS = re.compile(r"(?:libnss_\w+\.so.*|pam_\w+\.so)", re.DOTALL)
"""Libraries that are loaded because a setting names them: one that the image lacks is none that tests need."""

CPU_FOLDERS = re.compile(r"glibc-hwcaps|x86-64-v\d|tls|haswell|xeon_phi|avx512_1|x86_64|i[3-6]86|sse2|aarch64|atomics")
"""Folders for some processors, in which the loader looks before the folder that they are in."""

PROGRAM_FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
_LIBRARY_FOLDERS = (
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/usr/libexec"),
    *(f"{each}/{machine}-linux-gnu" for each in ("/lib", "/usr/lib") for machine in ("x86_64", "aarch64")),
)
LIBRARY_FOLDERS = (*_LIBRARY_FOLDERS, *(f"{each}/coreutils" for each in _LIBRARY_FOLDERS))
"""Folders of libraries, with those where `stdbuf` has the library that it loads into other programs."""

STDBUF_LIBRARIES = tuple(f"{each}/libstdbuf.so" for each in PROGRAM_FOLDERS)
"""Where `stdbuf` looks for its library first: next to the program."""

SETTING_FOLDERS = ("/etc/alternatives", "/etc/default", "/etc/pam.d", "/etc/profile.d", "/etc/security")
SYSTEM_FOLDERS = (
    *("/usr", "/usr/local", "/etc", "/run", "/tmp", "/var", "/var/tmp"),
    *(*PROGRAM_FOLDERS, *LIBRARY_FOLDERS, *SETTING_FOLDERS),
    *(f"{each}/{plugins}" for each in LIBRARY_FOLDERS for plugins in ("security", "gconv")),
)
"""Folders without which no test runs; in most images those at the top are links to others. Outer folders first."""

LOGS = "/logs"
TEST_FOLDERS = (LOGS, f"{LOGS}/verifier", "/tests")
"""Folders in which tests and rewards are put."""

ANSWER_PLACES = (
    *("/tests", f"{LOGS}/verifier", "/proc"),
    *("/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"),
)
"""Where the tests have what they expect, and the kernel their command lines and open files.

The agent may not make links that lead there: tests would compare their answer with itself.
"""

RUNTIME_LINK = "/etc/mtab"
"""A link to /proc that podman makes in every container."""

SETTINGS = re.compile(
    r"/etc/(?:nsswitch\.conf|environment|login\.defs|locale\.conf|profile|bash\.bashrc|bash\.bash_logout|bashrc|inputrc|"
    r"pam\.conf|ld\.so\.preload|ld-musl-.+\.path|z(?:shenv|profile|login|logout)|"
    r"(?:profile\.d|security|bash|zsh)(?:/.+)?|"
    r"pam\.d/(?:su|su-l|sudo|sudo-i|runuser|runuser-l|login|other|(?:common|system|password)-\w+))",
    re.DOTALL,
)
"""What the shell and the basic programs read in /etc. The rest of /etc is work of the agent: users, servers, hosts."""

PAM_FOLDER = "/etc/pam.d"
PAM_PROGRAMS = ("su", "su-l", "sudo", "sudo-i", "runuser", "runuser-l", "login", "other")
PAM_INCLUDE = re.compile(r"^\s*(?:@include|-?\w+\s+(?:include|substack))\s+(\S+)", re.MULTILINE)

SETTING_FILES = ("/etc/localtime", "/etc/default/locale", "/etc/default/su", "/etc/default/login")
"""Settings that are a link, or in a folder that the image may lack: the agent could make it a link."""

STARTUP_FILES = frozenset(
    [
        *(".profile", ".bash_profile", ".bash_login", ".bash_logout", ".bashrc", ".inputrc", ".pam_environment"),
        *(".zshenv", ".zprofile", ".zlogin", ".zlogout", ".zshrc"),
    ]
)
"""What a shell of a user reads when it starts or ends, in the user's home."""

FILE_VARIABLES = ("BASH_ENV", "LD_PRELOAD", "LD_AUDIT")
"""Variables that name files whose code is run in every shell or program."""

PASSWD, GROUP, CACHE = "/etc/passwd", "/etc/group", "/etc/ld.so.cache"
MAX_USER_BYTES = 1 << 18
MAX_HOME_CHARS = 255
USER_LINE = re.compile(
    r"(?P<name>[\w.$-]+):[ -9;-~]*:(?P<uid>\d{1,10}):(?P<gid>\d{1,10}):"
    r"[ -9;-~\x80-\xff]*:(?P<home>/[ -9;-~]*):[ -9;-~]*",
    re.ASCII,
)
"""A line of /etc/passwd with seven fields of printable characters; the name of a person may have any letters."""

MAX_CACHE_BYTES = 16 << 20
MAX_REPORTED = 100

Variables = Sequence[tuple[str, str]]
"""Environment variables; a name that occurs twice has one value for the shell that sets up and one for the tests."""


async def restore_pristine_files(
    handle: ContainerHandle,
    env: Iterable[tuple[str, str]] = (),
    commands: Sequence[Sequence[str]] = (),
    kept: Sequence[str] = (),
) -> list[str]:
    """Undo, in a container that was killed, what could speak for its tests; return the paths that were put back.

    `env` are further variables of the tests, `commands` what runs as, before or next to them, each a list of words.
    Nothing is undone below the paths `kept`.
    """
    layers = Layers(await handle.find_idle_layers(), kept)
    variables = [*await handle.environment(), *env]
    try:
        await asyncio.to_thread(undo_changes, layers, variables, await handle.find_workdir(), commands)
    except OSError as error:
        raise ContainerError(f"the files of the image cannot be put back: {error}") from None
    shown = [each.encode(errors="surrogateescape").decode(errors="replace") for each in sorted(layers.undone)]
    more = layers.undone_count - MAX_REPORTED
    return [*shown[:MAX_REPORTED], *([f"and {more} more"] if more > 0 else [])]


async def clear_test_folders(handle: ContainerHandle) -> None:
    """Remove, in a container that was killed, what is not of the image in the folders of tests and rewards.

    A command inside would take longer than it may if code inside made it deep, with tens of thousands of levels.
    """
    layers = Layers(await handle.find_idle_layers())
    try:
        await asyncio.to_thread(_clear_test_folders, layers)
    except OSError as error:
        raise ContainerError(f"the folders of the tests cannot be emptied: {error}") from None


def _clear_test_folders(layers: Layers) -> None:
    for folder in TEST_FOLDERS:  # others may keep their files in /logs
        if folder != LOGS or not layers.is_folder(folder):
            layers.move_aside(folder)


async def repair_user_files(handle: ContainerHandle) -> None:
    """Put back, in a container that was killed, files of users that are no files, or are too large.

    The runtime reads them itself when it copies files: it would wait for a pipe for ever.
    """
    if await handle.find_layers():
        layers = Layers(await handle.find_idle_layers())
        try:
            await asyncio.to_thread(_restore_user_files, layers)
        except OSError as error:
            raise ContainerError(f"the files of users cannot be put back: {error}") from None


def undo_changes(
    layers: Layers, variables: Variables, workdir: str = "/", commands: Sequence[Sequence[str]] = ()
) -> None:
    """Undo what of the changes of an agent could speak for tests; `layers.undone` lists it."""
    for folder in ("/", *TEST_FOLDERS):
        layers.remove_access_lists(folder)
    for folder in SYSTEM_FOLDERS:
        if layers.find_in_image(folder):
            layers.undo(folder)
    homes = _restore_homes(layers, variables)
    search_path = _list_paths(variables, "PATH", workdir)
    run = find_command_files(layers, commands, search_path, workdir)
    _restore_programs(layers, PROGRAMS | run.programs, search_path, homes)
    values = [(name, text) for name, value in variables for text in _expand(value, variables, homes)]
    named = [path for name in FILE_VARIABLES for path in _list_paths(values, name, workdir)]
    for path in (*SETTING_FILES, *STDBUF_LIBRARIES, *named, *run.paths, *_list_pam_files(layers)):
        layers.put_back(path)
    folders = [*LIBRARY_FOLDERS, *_list_paths(variables, "LD_LIBRARY_PATH", workdir)]
    libraries, known = [layers.resolve(each) for each in folders], layers.list_in_image(folders)
    converters = [layers.resolve(each) for each in _list_paths(variables, "GCONV_PATH", workdir)]

    def is_undone(path: str, status: os.stat_result) -> bool:
        folder, name = posixpath.split(path)
        if SETTINGS.fullmatch(path) or is_in(path, converters):
            return True
        if folder in run.folders and (is_script(path, status.st_mode) or _leads_to_program(layers, path, status)):
            return True
        if name in STARTUP_FILES and (folder in homes or posixpath.dirname(folder) == "/home"):
            return True
        return is_in(path, libraries) and _hides_library(path, status, known)

    links = layers.walk_changes(is_undone)
    for link in layers.find_links_into([each for each in links if each != RUNTIME_LINK], ANSWER_PLACES):
        layers.undo(link)
    if _redirects(layers, known):
        layers.put_back(CACHE)


def _list_paths(variables: Variables, name: str, workdir: str) -> list[str]:
    """Return the paths that a variable lists; a relative one is in the working folder."""
    values = [value for each, value in variables if each == name and value]
    paths = [path for value in values for path in (*value.split(":"), *re.split(r"[:;\s]", value))]
    return [posixpath.join(workdir, path) for path in dict.fromkeys(paths)]


def _leads_to_program(layers: Layers, path: str, status: os.stat_result) -> bool:
    return stat.S_ISLNK(status.st_mode) and layers.has_program(layers.resolve(path))


def _expand(value: str, variables: Variables, homes: Iterable[str]) -> list[str]:
    """Return a value with the variables that it names, as a shell of each user has them."""
    known = dict(variables)
    return [Template(value).safe_substitute({**known, "HOME": home}) for home in homes] if "$" in value else [value]


def list_absolute(value: str) -> str:
    """Return a search path without its relative elements: they are in whatever folder a test works in.

    >>> list_absolute("tools::/usr/bin:/bin")
    '/usr/bin:/bin'
    """
    return ":".join(each for each in value.split(":") if each.startswith("/"))


def _restore_programs(
    layers: Layers, names: frozenset[str], search_path: Sequence[str], homes: Collection[str]
) -> None:
    """Put back the programs that the image has, and undo programs that hide them: tests use none that it lacks.

    Folders behind those of the system hide nothing. They may be folders of the agent's work. In a home, the usual
    startup files of a login shell put some folders first.
    """
    last = max((place for place, each in enumerate(search_path) if each in PROGRAM_FOLDERS), default=len(search_path))
    first = [*search_path[:last], *(f"{home}/{folder}" for home in homes for folder in ("bin", ".local/bin"))]
    others = [layers.resolve(each) for each in first if each not in PROGRAM_FOLDERS]
    for name in names & layers.list_in_image([*PROGRAM_FOLDERS, *search_path]):
        for folder in PROGRAM_FOLDERS:
            layers.put_back(f"{folder}/{name}")
        for folder in others:
            if layers.has_program(f"{folder}/{name}"):
                layers.put_back(f"{folder}/{name}")


def _list_pam_files(layers: Layers) -> list[str]:
    """Return the rules of the image by which programs change their user, with those that they include."""
    left, found = [f"{PAM_FOLDER}/{name}" for name in PAM_PROGRAMS], list[str]()
    while left:
        path = left.pop()
        try:
            text = layers.read(layers.resolve_in_image(path), MAX_USER_BYTES, image=True).decode(errors="replace")
        except ValueError:
            continue
        if path not in found:
            found.append(path)
            left += [posixpath.join(PAM_FOLDER, name) for name in PAM_INCLUDE.findall(text)]
    return found


def _hides_library(path: str, status: os.stat_result, known: Collection[str]) -> bool:
    """Whether a change in a folder of libraries concerns one that the basic programs load."""
    name = posixpath.basename(path)
    if "/gconv/" in path or PLUGINS.fullmatch(name):
        return True
    if stat.S_ISLNK(status.st_mode) and CPU_FOLDERS.fullmatch(name):
        return True
    return bool(LIBRARIES.fullmatch(name)) and name in known


def _restore_homes(layers: Layers, variables: Variables) -> set[str]:
    """Put back the users of the image unless all that changed is usual; return all homes.

    Usual are other users with names, numbers and homes of their own, users that are gone, and other shells.
    """
    _restore_user_files(layers)
    before, now = _read_users(layers, image=True) or {}, _read_users(layers)
    homes = {"/root", *(user.home for user in before.values()), *(value for name, value in variables if name == "HOME")}
    if now is None or not _are_usual(before, now):
        layers.put_back(PASSWD)
        now = {}
    places = {layers.resolve(each) for each in {*homes, *(user.home for user in now.values())}}
    if any(is_in(place, KERNEL_FOLDERS) or len(place) > MAX_HOME_CHARS for place in places - homes):
        layers.put_back(PASSWD)
    return places


class User(NamedTuple):
    """A line of /etc/passwd: what decides who somebody is, and which startup files a shell of theirs reads."""

    uid: int
    gid: int
    home: str


def _are_usual(before: Mapping[str, User], now: Mapping[str, User]) -> bool:
    taken = {user.uid for user in before.values()}
    new = [user for name, user in now.items() if name not in before]
    kept = all(now[name] == user for name, user in before.items() if name in now)
    return kept and not any(user.uid in taken or len(user.home) > MAX_HOME_CHARS for user in new)


def _restore_user_files(layers: Layers) -> None:
    for path in (PASSWD, GROUP):
        try:
            layers.read(path, MAX_USER_BYTES)
        except ValueError:
            layers.put_back(path)


def _read_users(layers: Layers, *, image: bool = False) -> dict[str, User] | None:
    """Return the users by name; None if there are two of a name, or a line that programs may read differently."""
    try:
        lines = layers.read(PASSWD, MAX_USER_BYTES, image=image).decode("latin-1").split("\n")
    except ValueError:
        return {} if image else None
    users: dict[str, User] = {}
    for line in filter(None, lines):
        match = USER_LINE.fullmatch(line)
        if not match or match["name"] in users:
            return None
        users[match["name"]] = User(int(match["uid"]), int(match["gid"]), posixpath.normpath(match["home"]))
    return users


def _redirects(layers: Layers, known: set[str]) -> bool:
    """Return whether the cache of the loader names other files than the image for the libraries of basic programs."""
    try:
        now = read_loader_cache(layers.read(CACHE, MAX_CACHE_BYTES))
        before = read_loader_cache(layers.read(CACHE, MAX_CACHE_BYTES, image=True))
    except ValueError:
        return True
    needed = [each for each in {*known, *before} if LIBRARIES.fullmatch(each)]
    return any(now.get(each) != before.get(each) for each in needed)


def read_loader_cache(data: bytes) -> dict[str, set[str]]:
    """Return which files glibc's cache of libraries names for each; ValueError if it is none.

    It begins where glibc looks for it: at the start, or behind the list of the older format.
    """
    start = 0
    try:
        if data.startswith(b"ld.so-1.7.0"):
            (old,) = struct.unpack_from("<I", data, 12)
            start = (16 + 12 * old + 7) // 8 * 8
        if data[start : start + 20] != b"glibc-ld.so.cache1.1":
            raise ValueError("no cache of the loader")
        (count,) = struct.unpack_from("<I", data, start + 20)
        entries = [struct.unpack_from("<iII", data, start + 48 + 24 * number) for number in range(count)]
    except struct.error:
        raise ValueError("the cache of the loader is cut off") from None
    found: dict[str, set[str]] = {}
    for _, key, value in entries:
        found.setdefault(_text_at(data, start + key), set()).add(_text_at(data, start + value))
    return found


def _text_at(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    if end < 0:
        raise ValueError("the cache of the loader has a text without an end")
    return data[at:end].decode(errors="surrogateescape")
