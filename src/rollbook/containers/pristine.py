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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from string import Template
from typing import NamedTuple

from rollbook.containers.command_files import find_command_files, is_script
from rollbook.containers.handle import ContainerHandle
from rollbook.containers.layers import KERNEL_FOLDERS, Layers, is_in
from rollbook.containers.libraries import LoadedLibraries, find_libraries
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
"""Libraries that those programs load while they run, the usual ones of others, and the program that loads them.

Those that the files of the image name as needed are found there.
"""

PLUGINS = re.compile(r"(?:libnss_\w+\.so.*|pam_\w+\.so)", re.DOTALL)
"""Libraries that are loaded because a setting names them: one that the image lacks is none that tests need."""

PLUGIN_FOLDERS = ("security", "sudo")
"""Folders, in those of libraries, of what `su` and `sudo` load because a setting names it."""

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

SETTING_FOLDERS = (
    *("/etc/alternatives", "/etc/default", "/etc/pam.d", "/etc/profile.d", "/etc/security", "/etc/sudoers.d"),
)
SYSTEM_FOLDERS = (
    *("/usr", "/usr/local", "/etc", "/run", "/tmp", "/var", "/var/tmp"),
    *(*PROGRAM_FOLDERS, *LIBRARY_FOLDERS, *SETTING_FOLDERS),
    *(f"{each}/{plugins}" for each in LIBRARY_FOLDERS for plugins in (*PLUGIN_FOLDERS, "gconv")),
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

SETTINGS = (
    r"/(?:usr/)?etc/(?:"
    r"nsswitch\.conf|environment|login\.defs|locale\.conf|profile|bash\.bashrc|bash\.bash_logout|bashrc|inputrc|"
    r"pam\.conf|ld\.so\.preload|ld-musl-.+\.path|z(?:shenv|profile|login|logout|shrc)|"
    r"(?:profile\.d|login\.defs\.d|security|bash|zsh)(?:/.+)?|"
    r"pam\.d/(?:su|su-l|sudo|sudo-i|runuser|runuser-l|login|other|(?:common|system|password)-\w+))"
)
"""What the shell and the basic programs read in /etc. The rest of /etc is work of the agent: users, servers, hosts."""

SUDO = "sudo"
SUDO_SETTINGS = (
    r"/(?:usr/)?etc/sudo[^/]*(?:/.+)?",
    r"/(?:usr/(?:local/)?)?lib(?:exec|32|64)?/(?:[^/]+/)?sudo/[^/]+\.so(?:\..+)?",
)
"""What `sudo` reads and loads. Without a `sudo` of the image it is work of the agent, as the program is."""

SUDOERS = "/etc/sudoers"
SUDO_INCLUDE = re.compile(r"^[ \t]*[@#]include(?:dir)?[ \t]+\"?([^\s\"]+)", re.MULTILINE)

PAM_FOLDER = "/etc/pam.d"
PAM_PROGRAMS = ("su", "su-l", "sudo", "sudo-i", "runuser", "runuser-l", "login", "other")
PAM_INCLUDE = re.compile(r"^\s*(?:@include|-?\w+\s+(?:include|substack))\s+(\S+)", re.MULTILINE)

SETTING_FILES = ("/etc/localtime", "/etc/default/locale", "/etc/default/su", "/etc/default/login")
"""Settings that are a link, or in a folder that the image may lack: the agent could make it a link."""

STARTUP_FOLDER = ".bashrc.d"
STARTUP_FILES = frozenset(
    [
        *(".profile", ".bash_profile", ".bash_login", ".bash_logout", ".bashrc", ".bash_aliases", ".inputrc"),
        *(STARTUP_FOLDER, ".pam_environment", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".zshrc"),
    ]
)
"""What a shell of a user reads when it starts or ends, in the user's home: files, and a folder of files."""

HOMES = ("/", "/root", "/etc/skel")
"""Homes besides those of the users: of numbers that are no user, of root, and what new users get."""

HOME_VARIABLES = ("HOME", "ZDOTDIR")

FILE_VARIABLES = ("BASH_ENV", "ENV", "INPUTRC", "LD_PRELOAD", "LD_AUDIT")
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
    workdir, user = await handle.find_workdir(), await handle.find_user()
    try:
        await asyncio.to_thread(undo_changes, layers, variables, workdir, commands, user)
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
    layers: Layers, variables: Variables, workdir: str = "/", commands: Sequence[Sequence[str]] = (), user: str = ""
) -> None:
    """Undo what of the changes of an agent could speak for tests; `layers.undone` lists it.

    `user` is that of the container's first process.
    """
    _restore_folders(layers)
    # To such a user podman gives an entry in /etc/passwd at each start, with the working folder as home.
    given = [("HOME", workdir)] if _is_unknown_number(layers, user) else []
    homes = _restore_homes(layers, [*variables, *given])
    search_path = _list_paths(variables, "PATH", workdir)
    run = find_command_files(layers, commands, search_path, workdir)
    _restore_programs(layers, PROGRAMS | run.programs, search_path, homes)
    for path in (*_list_named_files(variables, workdir, homes), *run.paths):
        layers.put_back(path)
    settings = _restore_settings(layers, search_path)
    converters = [layers.resolve(each) for each in _list_paths(variables, "GCONV_PATH", workdir)]
    libraries = _restore_libraries(layers, search_path, _list_paths(variables, "LD_LIBRARY_PATH", workdir))

    def is_undone(path: str, status: os.stat_result) -> bool:
        if settings.fullmatch(path) or is_in(path, converters) or _is_startup_file(path, homes):
            return True
        if posixpath.dirname(path) in run.folders and _is_code(layers, path, status):
            return True
        if _is_in_own_folder(path, status, libraries.own):
            return True
        return is_in(path, libraries.folders) and _hides_library(path, status, libraries)

    links = layers.walk_changes(is_undone)
    for link in layers.find_links_into([each for each in links if each != RUNTIME_LINK], ANSWER_PLACES):
        layers.undo(link)
    if _redirects(layers, libraries):
        layers.put_back(CACHE)


def _restore_folders(layers: Layers) -> None:
    """Put back the folders of the system, and no permissions but those of the mode where tests are put."""
    for folder in ("/", *TEST_FOLDERS):
        layers.remove_access_lists(folder)
    for folder in SYSTEM_FOLDERS:
        if layers.find_in_image(folder):
            layers.undo(folder)


def _list_named_files(variables: Variables, workdir: str, homes: Iterable[str]) -> list[str]:
    """Return the files that variables name for shells and programs."""
    values = [(name, text) for name, value in variables for text in _expand(value, variables, homes)]
    values = [(name, text) for name, text in values if name != "ENV" or text.startswith("/")]  # else it is no file
    return [path for name in FILE_VARIABLES for path in _list_paths(values, name, workdir)]


def _is_startup_file(path: str, homes: Collection[str]) -> bool:
    folder, name = posixpath.split(path)
    if posixpath.basename(folder) == STARTUP_FOLDER:
        folder, name = posixpath.split(folder)
    return name in STARTUP_FILES and (folder in homes or posixpath.dirname(folder) == "/home")


def _list_paths(variables: Variables, name: str, workdir: str) -> list[str]:
    """Return the paths that a variable lists; a relative one is in the working folder."""
    values = [value for each, value in variables if each == name and value]
    paths = [path for value in values for path in (*value.split(":"), *re.split(r"[:;\s]", value))]
    return [posixpath.join(workdir, path) for path in dict.fromkeys(paths)]


def _is_code(layers: Layers, path: str, status: os.stat_result) -> bool:
    """Return whether what is in a folder of scripts may be run."""
    is_link = stat.S_ISLNK(status.st_mode)
    return is_script(path, status.st_mode) or (is_link and layers.has_program(layers.resolve(path)))


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
    restored = {layers.resolve(each) for each in PROGRAM_FOLDERS}
    others = [each for each in map(layers.resolve, first) if each not in restored]
    for name in names & layers.list_in_image([*PROGRAM_FOLDERS, *search_path]):
        for folder in PROGRAM_FOLDERS:
            layers.put_back(f"{folder}/{name}")
        for folder in others:
            if layers.has_program(f"{folder}/{name}"):
                layers.put_back(f"{folder}/{name}")


class Libraries(NamedTuple):
    """What must be that of the image in folders of libraries."""

    folders: list[str]
    """The folders of the system, and those of LD_LIBRARY_PATH."""
    known: set[str]
    """The names that the image has there."""
    loaded: set[str]
    """The names of the libraries that basic programs load."""
    own: dict[str, set[str]]
    """Folders that these programs and libraries name themselves, and what they load from there."""


def _restore_libraries(layers: Layers, search_path: Sequence[str], more_folders: Sequence[str]) -> Libraries:
    """Put back libraries of basic programs that are in unusual places; return what else must be that of the image."""
    folders = [*LIBRARY_FOLDERS, *more_folders]
    loaded = _find_loaded(layers, search_path, folders)
    places = list(dict.fromkeys(layers.resolve(each) for each in folders))
    for path in loaded.paths:
        if not is_in(path, places):
            layers.put_back(path)
    own: dict[str, set[str]] = {}
    for folder, names in loaded.own_folders.items():
        own.setdefault(layers.resolve(folder), set()).update(names)
    return Libraries(places, layers.list_in_image(folders), loaded.names, own)


def _find_loaded(layers: Layers, search_path: Sequence[str], folders: Sequence[str]) -> LoadedLibraries:
    """Return the libraries of the image that basic programs load, and those that their plug-ins load."""
    plugins = [f"{each}/{name}" for each in folders for name in PLUGIN_FOLDERS]
    files = [
        *_list_in_image(layers, [*PROGRAM_FOLDERS, *search_path], PROGRAMS.__contains__),
        *_list_in_image(layers, folders, LIBRARIES.fullmatch),
        *_list_in_image(layers, plugins, lambda _: True),
    ]
    return find_libraries(layers, files, [*folders, *_list_cached_folders(layers)])


def _list_in_image(layers: Layers, folders: Iterable[str], is_chosen: Callable[[str], object]) -> list[str]:
    """Return the files of folders of the image whose names are chosen; of folders with several names only once."""
    places = dict.fromkeys(layers.resolve_in_image(each) for each in folders)
    return [f"{place}/{name}" for place in places for name in layers.list_in_image([place]) if is_chosen(name)]


def _list_cached_folders(layers: Layers) -> list[str]:
    """Return the folders of the libraries that the loader's cache of the image names."""
    try:
        cache = read_loader_cache(layers.read(CACHE, MAX_CACHE_BYTES, image=True))
    except ValueError:
        return []
    return sorted({posixpath.dirname(path) for paths in cache.values() for path in paths})


def _restore_settings(layers: Layers, search_path: Sequence[str]) -> re.Pattern[str]:
    """Put back settings that others include, or that are links; return which other paths are settings."""
    included = [*_list_pam_files(layers)]
    chosen = [SETTINGS]
    if SUDO in layers.list_in_image([*PROGRAM_FOLDERS, *search_path]):
        rules = _list_sudo_rules(layers)
        included += rules
        chosen += [*SUDO_SETTINGS, *(re.escape(layers.resolve_in_image(each)) + "(?:/.+)?" for each in rules)]
    for path in (*SETTING_FILES, *STDBUF_LIBRARIES, *included):
        layers.put_back(path)
    return re.compile("|".join(f"(?:{each})" for each in chosen), re.DOTALL)


def _list_sudo_rules(layers: Layers) -> list[str]:
    """Return the files and folders that the rules of `sudo` in the image include."""
    try:
        text = layers.read(layers.resolve_in_image(SUDOERS), MAX_USER_BYTES, image=True).decode(errors="replace")
    except ValueError:
        return []
    return [posixpath.join("/etc", path) for path in SUDO_INCLUDE.findall(text)]


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


def _is_in_own_folder(path: str, status: os.stat_result, own: Mapping[str, Collection[str]]) -> bool:
    """Whether a change concerns a library in a folder that its user names, or in a folder for some processors there."""
    folder, name = posixpath.split(path)
    while folder not in own and CPU_FOLDERS.fullmatch(posixpath.basename(folder)):
        folder = posixpath.dirname(folder)
    is_link = stat.S_ISLNK(status.st_mode)
    return folder in own and (name in own[folder] or (is_link and CPU_FOLDERS.fullmatch(name) is not None))


def _hides_library(path: str, status: os.stat_result, libraries: Libraries) -> bool:
    """Whether a change in a folder of libraries concerns one that the basic programs load."""
    name = posixpath.basename(path)
    if "/gconv/" in path or PLUGINS.fullmatch(name):
        return True
    if stat.S_ISLNK(status.st_mode) and CPU_FOLDERS.fullmatch(name):
        return True
    return name in libraries.loaded or (bool(LIBRARIES.fullmatch(name)) and name in libraries.known)


def _restore_homes(layers: Layers, variables: Variables) -> set[str]:
    """Put back the users of the image unless all that changed is usual; return all homes.

    Usual are other users with names, numbers and homes of their own, users that are gone, and other shells.
    """
    _restore_user_files(layers)
    before, now = _read_users(layers, image=True) or {}, _read_users(layers)
    named = [value for name, value in variables if name in HOME_VARIABLES]
    homes = {*HOMES, *(user.home for user in before.values()), *named}
    if now is None or not _are_usual(before, now):
        layers.put_back(PASSWD)
        now = {}
    places = {layers.resolve(each) for each in {*homes, *(user.home for user in now.values())}}
    if any(is_in(place, KERNEL_FOLDERS) or len(place) > MAX_HOME_CHARS for place in places - homes):
        layers.put_back(PASSWD)
    return places


def _is_unknown_number(layers: Layers, user: str) -> bool:
    """Return whether a user is a number that no user of the image has."""
    number = user.partition(":")[0]
    known = {each.uid for each in (_read_users(layers, image=True) or {}).values()}
    return number.isdecimal() and int(number) not in known


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
    """Return the users by name; None if there are two of a name, or a line that programs may read differently.

    Such lines of the image are left out.
    """
    try:
        lines = layers.read(PASSWD, MAX_USER_BYTES, image=image).decode("latin-1").split("\n")
    except ValueError:
        return {} if image else None
    users: dict[str, User] = {}
    for line in filter(None, lines):
        match = USER_LINE.fullmatch(line)
        if not match or match["name"] in users:
            if not image:
                return None
            continue
        users[match["name"]] = User(int(match["uid"]), int(match["gid"]), posixpath.normpath(match["home"]))
    return users


def _redirects(layers: Layers, libraries: Libraries) -> bool:
    """Return whether the cache of the loader names other files than the image for the libraries of basic programs."""
    try:
        now = read_loader_cache(layers.read(CACHE, MAX_CACHE_BYTES))
        before = read_loader_cache(layers.read(CACHE, MAX_CACHE_BYTES, image=True))
    except ValueError:
        return True
    needed = {each for each in {*libraries.known, *before} if LIBRARIES.fullmatch(each)} | libraries.loaded
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
