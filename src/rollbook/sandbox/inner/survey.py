"""Which folders a guest must see: asked of a clean interpreter, which knows what it has loaded and no more.

Run by the host as `python -I -S -c "from inner import survey; survey.main()"`, with the names of packages and the
folders they are in; answers in JSON. It must import nothing beyond the few standard modules it uses.
"""

import json
import os
import sys
import sysconfig
from typing import Any

LINKS = ("/lib", "/lib64", "/usr/lib64")
WITH_LIBRARIES = ("ctypes", "ssl", "sqlite3", "zlib", "bz2", "lzma", "hashlib", "decimal")
"""Between them they load what the standard library is linked with, wherever that lies."""


def survey(packages: list[str], paths: list[str]) -> dict[str, Any]:
    """The folders of the interpreter and its libraries, and those of the packages and of what they have imported."""
    for name in WITH_LIBRARIES:
        load_if_present(name)
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    links = {link for link in LINKS if os.path.islink(link)}
    own = standard | links | find_library_folders()
    sys.path += paths
    for name in packages:
        __import__(name)
    chosen = {place for module in list(sys.modules.values()) for place in find_package_paths(module, paths)}
    folders = find_hidden_folders(standard)
    shown = [place for place in sorted(chosen) if any(place.startswith(f"{folder}/") for folder in folders)]
    return {"places": keep_outermost(own | chosen | find_library_folders()), "hidden": folders, "shown": shown}


def load_if_present(name: str) -> None:
    """Some interpreters were built without some of them."""
    try:
        __import__(name)
    except ImportError:
        return


def find_library_folders() -> set[str]:
    """Where the shared libraries lie that are loaded by now."""
    with open("/proc/self/maps") as file:
        names = {line.split(maxsplit=5)[5].strip() for line in file if ".so" in line}
    return {os.path.dirname(name) for name in names if name.startswith("/")}


def find_package_paths(module: Any, paths: list[str]) -> list[str]:
    """What of the packages' folders this module lies in: a folder or a file at their top."""
    file = getattr(module, "__file__", None)
    tops = [path for path in paths if isinstance(file, str) and file.startswith(f"{path}/")]
    return [os.path.join(path, file[len(path) + 1 :].partition("/")[0]) for path in tops if isinstance(file, str)]


def keep_outermost(found: set[str]) -> list[str]:
    """Nothing that lies inside another."""
    real = {path for path in found if os.path.exists(path)}
    return sorted(p for p in real if not any(p != q and p.startswith(f"{q}/") for q in real))


def find_hidden_folders(standard: set[str]) -> list[str]:
    """The folders of packages inside the interpreter's own: nothing in them was chosen, but for what is shown."""
    folders = {os.path.join(path, name) for path in standard for name in ("site-packages", "dist-packages")}
    return sorted(filter(os.path.isdir, folders))


def main() -> None:
    """Answer on stdout."""
    asked = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(survey(asked["packages"], asked["paths"])))
