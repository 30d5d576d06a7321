"""Which changes of an agent are undone before tests run."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from elf_files import make_elf

from rollbook.containers.layers import Layers
from rollbook.containers.pristine import read_loader_cache, undo_changes

MACHINE = "/usr/lib/x86_64-linux-gnu"
IMAGE = {
    **dict.fromkeys(("/usr/bin/bash", "/usr/bin/cat", "/usr/bin/mawk", "/entry.sh", "/usr/bin/python3"), ""),
    **dict.fromkeys((f"{MACHINE}/libc.so.6", f"{MACHINE}/libtinfo.so.6", f"{MACHINE}/libssl.so.3"), ""),
    **dict.fromkeys((f"{MACHINE}/libpam_misc.so.0", f"{MACHINE}/security/pam_unix.so", "/opt/bash_env"), ""),
    "/usr/libexec/coreutils/libstdbuf.so": "",
    **dict.fromkeys(("/etc/nsswitch.conf", "/etc/pam.d/su", "/root/.profile", "/usr/local/bin/x"), ""),
    **dict.fromkeys(("/etc/profile.d/x", "/data/x", "/usr/share/zoneinfo/UTC"), ""),
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nsys:x:3:3::/dev:/bin/false\n",
}
VARIABLES = [
    ("PATH", "tools:/opt/tools:/usr/local/bin:/usr/bin:/bin:later"),
    ("LD_LIBRARY_PATH", "/opt/lib"),
    ("BASH_ENV", "/opt/bash_env"),
]


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    """The layer of an agent over an image; every file is a program."""
    for path, text in IMAGE.items():
        write(tmp_path / "lower", path, text)
    (tmp_path / "lower/usr/bin/awk").symlink_to("/etc/alternatives/awk")
    (tmp_path / "lower/bin").symlink_to("usr/bin")
    (tmp_path / "lower/etc/localtime").symlink_to("/usr/share/zoneinfo/UTC")
    (tmp_path / "container/upper").mkdir(parents=True)
    return tmp_path / "container/upper"


def write(layer: Path, path: str, text: str) -> None:
    (layer / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    (layer / path[1:]).write_text(text)
    (layer / path[1:]).chmod(0o755)


def undo(upper: Path) -> Layers:
    layers = Layers({"UpperDir": str(upper), "LowerDir": str(upper.parent.parent / "lower")})
    undo_changes(layers, VARIABLES, "/app", [["/entry.sh", "/data", "/new"]])
    return layers


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/bash",
        "/usr/local/bin/cat",
        "/opt/tools/cat",
        "/app/tools/cat",
        f"{MACHINE}/libc.so.6",
        f"{MACHINE}/glibc-hwcaps/x86-64-v3/libc.so.6",
        "/usr/local/lib/libtinfo.so.6",
        "/opt/lib/libtinfo.so.6",
        "/lib64/libc.so.6",
        "/etc/ld.so.preload",
        "/etc/ld.so.cache",
        "/etc/ld-musl-x86_64.path",
        "/entry.sh",
        "/opt/bash_env",
        "/etc/nsswitch.conf",
        "/etc/environment",
        "/etc/default/locale",
        "/etc/localtime",
        "/usr/share/zoneinfo/UTC",
        "/etc/pam.d/su",
        "/etc/profile.d/new.sh",
        "/etc/profile.d/two\nlines.sh",
        "/etc/profile.d/\udcff.sh",
        "/root/.profile",
        "/root/.bash_logout",
        "/home/someone/.bashrc",
        "/home/someone/.bash_aliases",
        "/root/.bashrc.d",
        "/.bash_profile",
        "/.profile",
        "/etc/skel/.bashrc",
        "/etc/zshrc",
        "/usr/etc/profile",
        f"{MACHINE}/libnss_new.so.2",
        f"{MACHINE}/gconv/UTF-16.so",
        f"{MACHINE}/libpam_misc.so.0",
        f"{MACHINE}/security/pam_unix.so",
        "/usr/libexec/coreutils",
        "/usr/libexec/coreutils/libstdbuf.so",
        "/usr/lib/coreutils/libstdbuf.so",
        "/usr/bin/libstdbuf.so",
    ],
)
def test_what_could_speak_for_the_tests_is_put_back(upper: Path, path: str) -> None:
    write(upper, path, "evil")
    assert path in undo(upper).undone
    assert not (upper / path[1:]).exists()


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/python3",
        "/usr/bin/gawk",  # the image has none
        "/usr/local/bin/mytool",
        "/usr/bin/libtinfo.so.6",
        "/data/work",
        "/new/work",
        "/app/cat",
        "/app/later/cat",
        "/app/tools/test/data",
        f"{MACHINE}/libssl.so.3",
        f"{MACHINE}/libreadline.so.8",
        "/etc/nginx/nginx.conf",
        "/etc/default/nginx",
        "/etc/pam.d/sshd",
        "/etc/sudoers.d/x",  # the image has no sudo
        "/etc/sudo.conf",
        "/usr/libexec/sudo/sudoers.so",
        "/etc/skel/work",
        "/.config",
        "/etc/alternatives/python3",
        "/app/.bashrc",
        "/usr/local/lib/python3.11/site-packages/new.py",
    ],
)
def test_other_work_of_the_agent_stays(upper: Path, path: str) -> None:
    write(upper, path, "work")
    assert undo(upper).undone == []
    assert (upper / path[1:]).read_text() == "work"


@pytest.mark.parametrize(
    "path", ["/usr/bin/python3", "/usr/local/bin/python3", "/opt/tools/python3", "/start.d/x", "/start.d/y.sh"]
)
def test_programs_and_folders_of_scripts_that_commands_name_are_put_back(upper: Path, path: str) -> None:
    write(upper.parent.parent / "lower", "/start.d/x", "")
    write(upper.parent.parent / "lower", "/entry.sh", "for each in /start.d/*; do $each; done")
    write(upper, path, "evil")
    write(upper, "/start.d/list.txt", "work")
    (upper / "start.d/list.txt").chmod(0o644)
    layers = Layers({"UpperDir": str(upper), "LowerDir": str(upper.parent.parent / "lower")})
    undo_changes(layers, VARIABLES, "/app", [["/entry.sh"], ["/usr/bin/env", "python3"]])
    assert path in layers.undone
    assert (upper / "start.d/list.txt").exists()


def test_a_link_to_a_program_in_a_folder_of_scripts_is_undone_and_one_to_data_stays(upper: Path) -> None:
    write(upper.parent.parent / "lower", "/start.d/x", "")
    write(upper.parent.parent / "lower", "/entry.sh", "ls /start.d")
    write(upper, "/evil", "")
    write(upper, "/app/site.conf", "")
    (upper / "app/site.conf").chmod(0o644)
    (upper / "start.d").mkdir()
    (upper / "start.d/program").symlink_to("/evil")
    (upper / "start.d/site.conf").symlink_to("/app/site.conf")
    assert undo(upper).undone == ["/start.d/program"]


def test_changes_below_kept_paths_stay(upper: Path) -> None:
    for path in ("/root/.profile", "/etc/profile.d/java.sh", "/etc/environment", "/usr/bin/bash"):
        write(upper, path, "work")
    layers = Layers(
        {"UpperDir": str(upper), "LowerDir": str(upper.parent.parent / "lower")},
        ["/root/.profile", "/etc/profile.d", "/etc/env"],
    )
    undo_changes(layers, VARIABLES, "/app")
    assert sorted(layers.undone) == ["/etc/environment", "/usr/bin/bash"]


def test_a_file_of_bash_that_a_variable_leads_to_is_put_back_in_every_home(upper: Path) -> None:
    write(upper, "/root/.benv", "evil")
    layers = Layers({"UpperDir": str(upper), "LowerDir": str(upper.parent.parent / "lower")})
    undo_changes(layers, [("BASH_ENV", "$HOME/.benv")], "/app")
    assert layers.undone == ["/root/.benv"]


def test_a_file_in_the_folder_of_startup_files_is_put_back(upper: Path) -> None:
    write(upper.parent.parent / "lower", "/root/.bashrc.d/one", "")
    write(upper, "/root/.bashrc.d/one", "evil")
    write(upper, "/root/.bashrc.d/two", "evil")
    write(upper, "/app/.bashrc.d/one", "work")
    assert sorted(undo(upper).undone) == ["/root/.bashrc.d/one", "/root/.bashrc.d/two"]


def test_startup_files_in_the_homes_that_variables_name_are_put_back(upper: Path) -> None:
    for path in ("/srv/home/.profile", "/srv/zsh/.zshenv", "/srv/inputrc", "/srv/shinit", "/app/production"):
        write(upper, path, "evil")
    layers = Layers({"UpperDir": str(upper), "LowerDir": str(upper.parent.parent / "lower")})
    variables = [("HOME", "/srv/home/"), ("ZDOTDIR", "/srv/zsh"), ("INPUTRC", "/srv/inputrc"), ("ENV", "/srv/shinit")]
    undo_changes(layers, [*variables, ("ENV", "production")], "/app")
    assert sorted(layers.undone) == ["/srv/home/.profile", "/srv/inputrc", "/srv/shinit", "/srv/zsh/.zshenv"]


@pytest.mark.parametrize(
    ("user", "undone"),
    [
        ("4321", ["/app/.bashrc"]),
        ("4321:0", ["/app/.bashrc"]),
        ("", []),
        ("0", []),
        ("3:4321", []),
        ("sys", []),
    ],
)
def test_startup_files_in_the_working_folder_are_put_back_if_it_is_the_home_of_a_number(
    upper: Path, user: str, undone: list[str]
) -> None:
    write(upper, "/app/.bashrc", "evil")
    layers = Layers({"UpperDir": str(upper), "LowerDir": str(upper.parent.parent / "lower")})
    undo_changes(layers, [], "/app", user=user)
    assert layers.undone == undone


@pytest.mark.parametrize(
    "path",
    [
        "/etc/sudoers",
        "/etc/sudoers.d",
        "/etc/sudoers.d/x",
        "/etc/sudo.conf",
        "/usr/libexec/sudo/sudoers.so",
        "/usr/lib/sudo/new.so",
        "/opt/rules",
        "/srv/rules.d/new",
    ],
)
def test_the_settings_and_libraries_of_sudo_are_put_back_if_the_image_has_it(upper: Path, path: str) -> None:
    lower = upper.parent.parent / "lower"
    write(lower, "/usr/bin/sudo", "")
    write(
        lower, "/etc/sudoers", 'Defaults env_reset\n@include /opt/rules\n#includedir "/srv/rules.d"\n# @include /no\n'
    )
    write(lower, "/srv/rules.d/old", "")
    write(lower, "/etc/sudoers.d/README", "")
    write(lower, "/usr/libexec/sudo/sudoers.so", "")
    write(upper, path, "evil")
    write(upper, "/usr/local/lib/python3/sudo/work.py", "work")
    assert undo(upper).undone == [path]


def make_image_with_hashes(upper: Path) -> Path:
    """Give the image a program whose library loads another one, a link to a file with a longer name."""
    lower = upper.parent.parent / "lower"
    libraries = lower / MACHINE[1:]
    (lower / "usr/bin/md5sum").write_bytes(make_elf(["libnew.so.3"]))
    (lower / "usr/bin/md5sum").chmod(0o755)
    (libraries / "libnew.so.3").write_bytes(make_elf(["libz.so.1"], "/opt/own"))
    (libraries / "libz.so.1.3").write_bytes(make_elf())
    (libraries / "libz.so.1").symlink_to("libz.so.1.3")
    return lower


@pytest.mark.parametrize(
    "path",
    [
        f"{MACHINE}/libnew.so.3",
        f"{MACHINE}/libz.so.1",
        f"{MACHINE}/libz.so.1.3",
        f"{MACHINE}/glibc-hwcaps/x86-64-v3/libz.so.1",
        "/usr/local/lib/libz.so.1",
        "/opt/lib/libz.so.1",
        "/opt/own/libz.so.1",
        "/opt/own/glibc-hwcaps/x86-64-v3/libz.so.1",
        "/opt/own",
    ],
)
def test_a_library_that_a_library_of_a_basic_program_loads_is_put_back(upper: Path, path: str) -> None:
    make_image_with_hashes(upper)
    if path == "/opt/own":
        write(upper, "/evil/libz.so.1", "evil")
        (upper / "opt").mkdir()
        (upper / "opt/own").symlink_to("/evil")
        path = "/evil/libz.so.1"
    else:
        write(upper, path, "evil")
    assert path in undo(upper).undone
    assert not os.path.lexists(upper / path[1:])


def test_libraries_that_only_other_programs_load_stay(upper: Path) -> None:
    lower = make_image_with_hashes(upper)
    (lower / "usr/bin/python3").write_bytes(make_elf(["libsqlite3.so.0"]))
    write(lower, f"{MACHINE}/libsqlite3.so.0", "")
    for name in ("sqlite3.so.0", "z.so.2"):
        write(lower, f"/opt/own/lib{name}", "")
    write(lower, "/opt/own/libtinfo.so.6", "")  # of other programs: basic ones load that of the system
    stay = ("/opt/own/libsqlite3.so.0", "/opt/own/libz.so.2", "/opt/own/libtinfo.so.6", "/opt/own/other/libz.so.1")
    for path in (f"{MACHINE}/libsqlite3.so.0", "/usr/local/lib/libz.so.2", "/app/libz.so.1", *stay):
        write(upper, path, "work")
    assert undo(upper).undone == []


def test_a_library_in_a_folder_that_only_the_cache_of_the_loader_names_is_put_back(upper: Path) -> None:
    lower = make_image_with_hashes(upper)
    write(lower, "/opt/cached/libz.so.1", "")
    (lower / "etc/ld.so.cache").write_bytes(make_cache({"libz.so.1": "/opt/cached/libz.so.1"}))
    write(upper, "/opt/cached/libz.so.1", "evil")
    write(upper, "/opt/cached/libother.so.1", "work")
    assert undo(upper).undone == ["/opt/cached/libz.so.1"]


def test_a_cache_of_the_loader_that_redirects_a_library_of_a_library_is_put_back(upper: Path) -> None:
    lower = make_image_with_hashes(upper)
    (lower / "etc/ld.so.cache").write_bytes(make_cache({"libz.so.1": f"{MACHINE}/libz.so.1"}))
    (upper / "etc").mkdir()
    (upper / "etc/ld.so.cache").write_bytes(make_cache({"libz.so.1": "/evil/libz.so.1"}))
    assert undo(upper).undone == ["/etc/ld.so.cache"]


def test_homes_of_an_image_with_an_odd_line_in_its_users_are_known(upper: Path) -> None:
    lower = upper.parent.parent / "lower"
    write(lower, "/etc/passwd", "+::::::\njudge:x:1000:1000::/srv/judge:/bin/sh\n" + IMAGE["/etc/passwd"])
    write(upper, "/srv/judge/.profile", "evil")
    assert "/srv/judge/.profile" in undo(upper).undone


def test_a_user_whose_name_has_other_letters_stays(upper: Path) -> None:
    write(upper, "/etc/passwd", IMAGE["/etc/passwd"] + "jose:x:1000:1000:José García,,,:/home/jose:/bin/bash\n")
    assert undo(upper).undone == []


@pytest.mark.parametrize("path", ["/etc/pam.d/postlogin", "/etc/pam.d/one", "/opt/rules"])
def test_rules_that_those_of_su_include_are_put_back(upper: Path, path: str) -> None:
    lower = upper.parent.parent / "lower"
    write(lower, "/etc/pam.d/su", "auth sufficient pam_rootok.so\n@include one\n")
    write(lower, "/etc/pam.d/one", "session   include   postlogin\n-auth substack linked\n")
    write(lower, "/etc/pam.d/postlogin", "session include one")
    write(lower, "/opt/rules", "")
    (lower / "etc/pam.d/linked").symlink_to("/opt/rules")
    write(upper, path, "evil")
    assert undo(upper).undone == [path]


@pytest.mark.parametrize(
    "link", ["/usr", "/usr/local", "/usr/local/bin", "/bin", MACHINE, f"{MACHINE}/security", "/etc"]
)
def test_a_folder_that_became_a_link_is_put_back(upper: Path, link: str) -> None:
    write(upper, "/evil/cat", "evil")
    (upper / link[1:]).parent.mkdir(parents=True, exist_ok=True)
    (upper / link[1:]).symlink_to("/evil")
    assert link in undo(upper).undone


@pytest.mark.parametrize("link", ["/opt/tools", "/opt/lib", "/etc/default", "/root"])
def test_a_link_to_a_folder_of_the_agent_is_followed(upper: Path, link: str) -> None:
    for name in ("cat", "libc.so.6", "locale", ".profile", "work"):
        write(upper, f"/evil/{name}", "evil")
    (upper / link[1:]).parent.mkdir(parents=True, exist_ok=True)
    (upper / link[1:]).symlink_to("/evil")
    undo(upper)
    assert len(os.listdir(upper / "evil")) == 4
    assert (upper / "evil/work").exists()


def test_users_that_the_agent_made_stay_without_their_startup_files(upper: Path) -> None:
    write(upper, "/etc/passwd", IMAGE["/etc/passwd"] + "new:x:1:1::/srv//home/:/bin/sh\n")
    write(upper, "/srv/home/.profile", "evil")
    assert undo(upper).undone == ["/srv/home/.profile"]


@pytest.mark.parametrize(
    "line", ["root:x:0:0::/evil:", " root:x:0:0::/evil:", "root:x:0:0::root:", "new:x:1:1::/proc/self/root/evil:"]
)
def test_a_strange_home_restores_the_users_of_the_image(upper: Path, line: str) -> None:
    write(upper, "/etc/passwd", f"{line}\n{IMAGE['/etc/passwd']}")
    assert undo(upper).undone == ["/etc/passwd"]


def test_another_group_of_a_user_of_the_image_restores_the_users(upper: Path) -> None:
    write(upper, "/etc/passwd", IMAGE["/etc/passwd"].replace("sys:x:3:3:", "sys:x:3:0:"))
    assert undo(upper).undone == ["/etc/passwd"]


def make_cache(paths: dict[str, str]) -> bytes:
    at, table, texts = 48 + 24 * len(paths), b"", b""
    for name, path in paths.items():
        table += struct.pack("<iIIIQ", 0x303, at + len(texts), at + len(texts) + len(name) + 1, 0, 0)
        texts += f"{name}\0{path}\0".encode()
    return b"glibc-ld.so.cache1.1" + struct.pack("<II", len(paths), len(texts)) + bytes(20) + table + texts


SYSTEM = {name: f"{MACHINE}/{name}" for name in ("libc.so.6", "libtinfo.so.6")}


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        ({**SYSTEM, "libnew.so.1": "/opt/libnew.so.1"}, True),
        ({**SYSTEM, "libreadline.so.8": f"{MACHINE}/libreadline.so.8"}, True),
        ({**SYSTEM, "libc.so.6": "/evil/libc.so.6"}, False),
        ({"libc.so.6": SYSTEM["libc.so.6"]}, False),
        ({}, False),
    ],
)
def test_a_cache_of_the_loader_stays_if_it_names_the_libraries_of_the_image(
    upper: Path, paths: dict[str, str], kept: bool
) -> None:
    for layer, content in ((upper.parent.parent / "lower", SYSTEM), (upper, paths)):
        (layer / "etc").mkdir(exist_ok=True)
        (layer / "etc/ld.so.cache").write_bytes(make_cache(content))
    assert undo(upper).undone == ([] if kept else ["/etc/ld.so.cache"])


def test_the_cache_of_the_loader_is_read() -> None:
    cache = Path("/etc/ld.so.cache")
    if not cache.is_file():
        pytest.skip("this machine has no glibc")
    found = read_loader_cache(cache.read_bytes())
    shown = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    for name in ("libc.so.6", "libm.so.6"):
        assert any(path in shown for path in found[name])


def test_a_cache_behind_the_older_format_is_read_where_the_loader_reads_it() -> None:
    decoy = make_cache({}).ljust(12 * 6, b"\0")
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 6) + decoy
    assert read_loader_cache(old + make_cache({"a": "/evil/a"})) == {"a": {"/evil/a"}}


def test_a_broken_cache_is_an_error() -> None:
    magic = b"glibc-ld.so.cache1.1"
    for data in (
        b"",
        b"x" * 100,
        b"x" + make_cache({}),
        magic + struct.pack("<I", 9) + bytes(30),
        make_cache(SYSTEM)[:-1],
    ):
        with pytest.raises(ValueError, match="cache"):
            read_loader_cache(data)
