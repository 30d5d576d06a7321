"""Find the folders that a guest must see, in a clean interpreter that has loaded only what guests need.

Run by the host as `python -I -S -c "from inner import survey; survey.main()"`, with the names of packages and their
folders; it answers in JSON. It must import nothing beyond the few standard modules it uses.
"""

import json
import os
import sys
import sysconfig
from typing import Any

LINKS = ("/lib", "/lib64", "/usr/lib64")
WITH_LIBRARIES = ("ctypes", "ssl", "sqlite3", "zlib", "bz2", "lzma", "hashlib", "decimal")
"""Together they load the shared libraries that the standard library is linked with, wherever those are."""


def survey(packages: list[str], paths: list[str]) -> dict[str, Any]:
    """Return the folders of the interpreter, its libraries, the packages and what the packages have imported."""
    for name in WITH_LIBRARIES:
        load_if_present(name)
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    links = {link for link in LINKS if os.path.islink(link)}
    interpreter_paths = standard | links | find_library_folders()
    sys.path += paths
    for name in packages:
        __import__(name)
    package_paths = {path for module in list(sys.modules.values()) for path in find_package_paths(module, paths)}
    folders = find_hidden_folders(standard)
    shown = [path for path in sorted(package_paths) if any(path.startswith(f"{folder}/") for folder in folders)]
    return {
        "places": keep_outermost(interpreter_paths | package_paths | find_library_folders()),
        "hidden": folders,
        "shown": shown,
    }


def load_if_present(name: str) -> None:
    """Import a module, unless this interpreter was built without it."""
    try:
        __import__(name)
    except ImportError:
        return


def find_library_folders() -> set[str]:
    """Return the folders of the shared libraries that are loaded now."""
    with open("/proc/self/maps") as file:
        names = {line.split(maxsplit=5)[5].strip() for line in file if ".so" in line}
    return {os.path.dirname(name) for name in names if name.startswith("/")}


def find_package_paths(module: Any, paths: list[str]) -> list[str]:
    """Return the top folder or file that contains this module in the packages' folders."""
    file = getattr(module, "__file__", None)
    folders = [path for path in paths if isinstance(file, str) and file.startswith(f"{path}/")]
    return [os.path.join(path, file[len(path) + 1 :].partition("/")[0]) for path in folders if isinstance(file, str)]


def keep_outermost(paths: set[str]) -> list[str]:
    """Return the existing paths that are not inside another one."""
    existing = {path for path in paths if os.path.exists(path)}
    return sorted(p for p in existing if not any(p != q and p.startswith(f"{q}/") for q in existing))


def find_hidden_folders(standard: set[str]) -> list[str]:
    """Return the package folders inside the interpreter's own: everything in them is hidden except what is shown."""
    folders = {os.path.join(path, name) for path in standard for name in ("site-packages", "dist-packages")}
    return sorted(filter(os.path.isdir, folders))


def main() -> None:
    """Write the answer to stdout."""
    request = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(survey(request["packages"], request["paths"])))
