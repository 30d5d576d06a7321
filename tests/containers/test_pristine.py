"""Which changes of an agent are undone before tests run."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from rollbook.containers.pristine import choose_restorations, read_loader_cache


@pytest.mark.parametrize(
    ("path", "kind", "source"),
    [
        ("/usr/bin/bash", "C", "/usr/bin/bash"),
        ("/bin/sh", "D", "/bin/sh"),
        ("/usr/local/bin/cat", "A", "*/cat"),
        ("/opt/tools/cat", "A", "*/cat"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "C", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libc.so.6", "A", "*/libc.so.6"),
        ("/usr/local/lib/libtinfo.so.6", "A", "*/libtinfo.so.6"),
        ("/lib64/ld-linux-x86-64.so.2", "C", "/lib64/ld-linux-x86-64.so.2"),
        ("/etc/ld.so.preload", "A", "/etc/ld.so.preload"),
        ("/etc/ld.so.cache", "C", "/etc/ld.so.cache"),
        ("/entry.sh", "C", "/entry.sh"),
        ("/etc/alternatives/awk", "C", "/etc/alternatives/awk"),
        ("/etc/nsswitch.conf", "C", "/etc/nsswitch.conf"),
        ("/etc/pam.d/su", "C", "/etc/pam.d/su"),
        ("/etc/profile.d/new.sh", "A", "/etc/profile.d/new.sh"),
        ("/root/.profile", "C", "/root/.profile"),
        ("/home/someone/.bashrc", "A", "/home/someone/.bashrc"),
        ("/srv/home/.bashrc", "A", "/srv/home/.bashrc"),
        ("/usr/lib/x86_64-linux-gnu/libnss_new.so.2", "A", "*/libnss_new.so.2"),
        ("/usr/lib/x86_64-linux-gnu/libpam_misc.so.0", "C", "/usr/lib/x86_64-linux-gnu/libpam_misc.so.0"),
    ],
)
def test_what_could_speak_for_the_tests_is_put_back(path: str, kind: str, source: str) -> None:
    chosen = choose_restorations({path: kind}, ["/opt/tools"], ["/entry.sh"], ["/srv/home"])
    assert [(each.path, each.source) for each in chosen] == [(path, source)]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/usr/bin/python3", "C"),
        ("/usr/local/bin/mytool", "A"),
        ("/app/cat", "A"),
        ("/usr/lib/x86_64-linux-gnu/libssl.so.3", "C"),
        ("/usr/bin", "C"),
        ("/etc/passwd", "C"),
        ("/etc/nginx/nginx.conf", "C"),
        ("/etc/pam.d/sshd", "A"),
        ("/etc/alternatives/python3", "C"),
        ("/app/.bashrc", "A"),
        ("/usr/local/lib/python3.11/site-packages/new.py", "A"),
    ],
)
def test_other_work_of_the_agent_stays(path: str, kind: str) -> None:
    assert choose_restorations({path: kind}, []) == []


def test_the_cache_of_the_loader_is_read() -> None:
    cache = Path("/etc/ld.so.cache")
    if not cache.is_file():
        pytest.skip("this machine has no glibc")
    found = read_loader_cache(cache.read_bytes())
    shown = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    for name in ("libc.so.6", "libm.so.6"):
        assert any(path in shown for path in found[name])


def test_a_broken_cache_is_an_error() -> None:
    for data in (b"", b"x" * 100, b"glibc-ld.so.cache1.1" + struct.pack("<I", 9) + b"\0" * 30):
        with pytest.raises(ValueError, match="cache"):
            read_loader_cache(data)
