"""The user's own source: whether a file is the user's, its module name, what it imports, and importing it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from rollbook.errors import UsageError

ALIAS_PREFIX = "rollbook_source_"
"""Prefix for the name of a file that would otherwise hide an installed module (a user's `random.py`)."""

_FOLDERS = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
_INSTALLED = tuple(Path(folder).resolve() for folder in _FOLDERS)
PACKAGE = "rollbook"
_PACKAGE = Path(__file__).resolve().parent.parent
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (*_FOLDERS, *_INSTALLED, _PACKAGE))


def is_user_file(path: Path) -> bool:
    """Whether a file is the user's: not the standard library's, not an installed package's, not Rollbook's."""
    path = path.resolve()
    if path.is_relative_to(_PACKAGE) or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)


def locate_module(path: Path) -> tuple[Path, str]:
    """Return the folder to import a file from, and its module name: a file in a package keeps its dotted name."""
    path = path.resolve()
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_module_file(root: Path, module: str) -> Path | None:
    """Return the file of a module in a folder."""
    base = root.joinpath(*module.split("."))
    try:
        return next((f for f in (base / "__init__.py", base.with_name(f"{base.name}.py")) if f.is_file()), None)
    except OSError:  # its name is too long for a file
        return None


def import_from(root: Path, module: str) -> ModuleType:
    """Import a module from a folder, even if another one of that name was imported before."""
    path = find_module_file(root, module)
    if path is None:
        raise UsageError(f"{root}: holds no module {module}")
    loaded = sys.modules.get(_import_name(module))
    if loaded is not None and _user_file(loaded) == path.resolve():
        return loaded
    name = _import_name(module)
    put_first_on_path(root)
    importlib.invalidate_caches()
    return importlib.import_module(module) if name == module else _import_as(name, path)


def put_first_on_path(root: Path) -> None:
    """Make this folder the first one from which modules are imported."""
    _forget_namesakes(root)
    if str(root) not in sys.path[:1]:
        sys.path.insert(0, str(root))


def _import_name(module: str) -> str:
    """Return the name to import a module by: its own, unless the standard library or a package has that name."""
    if "." in module:
        return module
    try:
        found = importlib.util.find_spec(module)
    except ValueError:  # a module that was made by hand, such as __main__
        return ALIAS_PREFIX + module
    if found is None:
        return module
    own = found.has_location and found.origin is not None and is_user_file(Path(found.origin))
    return module if own else ALIAS_PREFIX + module


def _import_as(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _forget_namesakes(root: Path) -> None:
    """Remove the user's modules of other folders that have the names of modules of this one."""
    for name, module in list(sys.modules.items()):
        path = _user_file(module)
        if path is None or not is_user_file(path) or name == "__main__":
            continue
        if (find_module_file(root, name.split(".")[0]) or find_module_file(root, name)) and not path.is_relative_to(
            root.resolve()
        ):
            del sys.modules[name]


def _user_file(module: ModuleType) -> Path | None:
    """Return a module's file; None for a library's: a trainer has thousands, and resolving all their links is slow."""
    path = getattr(module, "__file__", None)
    return Path(path).resolve() if isinstance(path, str) and not path.startswith(_LIBRARIES) else None


def imported_files(root: Path) -> set[Path]:
    """Return the user's files in a folder that are imported now."""
    files = {_user_file(module) for module in list(sys.modules.values())}
    return {f for f in files if f is not None and f.is_relative_to(root) and f.suffix == ".py" and is_user_file(f)}


PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What parsing raises for bytes that are not Python: a NUL or bytes that are not UTF-8, too much nesting."""


def import_closure(root: Path, path: Path, text: str | None = None) -> set[Path]:
    """Return a file and every file in the folder that it imports, directly or not, also inside functions.

    With `text`, it is what that text imports, were it at this place; the file itself is left out.
    """
    closure: set[Path] = set()
    queue = [path] if text is None else [*_directly_imported_files(root, path, text.encode())]
    while queue:
        current = queue.pop()
        if current not in closure:
            closure.add(current)
            queue += [*_package_files(root, current), *_directly_imported_files(root, current)]
    return closure


def _package_files(root: Path, path: Path) -> Iterator[Path]:
    folder = path.parent
    while folder != root and folder.is_relative_to(root):
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        folder = folder.parent


def _directly_imported_files(root: Path, path: Path, text: bytes | None = None) -> Iterator[Path]:
    package = list(path.relative_to(root).parts[:-1])
    try:
        tree = ast.parse(path.read_bytes() if text is None else text, str(path))
    except PARSE_ERRORS:  # it is copied unchanged; importing it raises the error
        return
    for node in ast.walk(tree):
        files = (find_module_file(root, name) for name in _module_names(node, package) if name)
        yield from (f for f in files if f and is_user_file(f))


def _module_names(node: ast.AST, package: list[str]) -> list[str]:
    """Return the modules that a statement may import; `from a import b` may mean the module a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    above = package[: len(package) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]


def explain_error(error: BaseException, root: Path | None = None) -> str:
    """Describe an exception of the user's source in one line: type, message and place (in `root` if possible)."""
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {message or 'no message'}{_error_location(error, root)}"


def _error_location(error: BaseException, root: Path | None) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({display_path(Path(error.filename))}:{error.lineno})"
    frames = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    frames = [f for f in frames if not str(f[0]).startswith("<") and not f[0].is_relative_to(_PACKAGE)]
    frames = [f for f in frames if root and f[0].is_relative_to(root)] or [f for f in frames if is_user_file(f[0])]
    return f" ({display_path(frames[-1][0])}:{frames[-1][1]})" if frames else ""


def display_path(path: Path) -> str:
    """Return a path for display: relative to the current directory if it is inside."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
