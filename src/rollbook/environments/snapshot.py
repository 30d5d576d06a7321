"""Snapshots: copy the user's source into the run directory when a run is planned, and load it from there."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from types import ModuleType

import msgspec

from rollbook.book import digest_source, is_source_edited, list_source_files
from rollbook.core import BUILTIN_PREFIX, EnvironmentSpec, scoring_digest
from rollbook.environments import source
from rollbook.environments.environment import Environment
from rollbook.environments.registry import LoadedEnvironment, construct, import_class
from rollbook.errors import RollbookError, UsageError


def write_snapshot(loaded: LoadedEnvironment, folder: Path, subfolder: str = "") -> EnvironmentSpec:
    """Record what an environment was loaded from: the user's own source is copied to `folder`, a package is digested.

    `folder` is in the run directory. The sources of several environments are separate, each in its own `subfolder`.
    """
    if loaded.path is None:
        return msgspec.structs.replace(loaded.spec, digest=_installed_digest(loaded.spec.target))
    copy, origin = folder / subfolder, source.display_path(loaded.path)
    for name, path in source_files(loaded).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy / name)
    if loaded.text is not None:
        copy.mkdir(parents=True, exist_ok=True)
        (copy / f"{loaded.path.stem}.py").write_text(loaded.text)
        origin = ""  # no file can be compared with it later
    snapshot = (Path(folder.name) / subfolder).as_posix()
    return msgspec.structs.replace(loaded.spec, digest=digest_source(copy), snapshot=snapshot, origin=origin)


def find_changed_file(spec: EnvironmentSpec, run_dir: Path) -> str | None:
    """Return the first file that has changed since the run was planned; None if none has, or the source is not here."""
    if spec.snapshot is None:
        changed = spec.digest and _installed_digest(spec.target) != spec.digest
        return spec.target.removeprefix(BUILTIN_PREFIX).partition(":")[0] if changed else None
    origin = Path(spec.origin)
    if not origin.is_file():
        return None
    root = _module_root(origin.resolve(), spec.target)
    for name, copy in sorted(list_source_files(run_dir / spec.snapshot).items()):
        current = root / name
        if not current.is_file() or current.read_bytes() != copy.read_bytes():
            return source.display_path(current)
    return None


def require_unedited(spec: EnvironmentSpec, run_dir: Path) -> None:
    """Refuse a copy in the run directory that has changed since the run was planned."""
    if is_source_edited(run_dir, spec):
        folder = run_dir / (spec.snapshot or "")
        raise UsageError(f"{folder} was edited since the run began, so scores would change: restore it from a copy")


def load_environment(spec: EnvironmentSpec, run_dir: Path | None = None) -> Environment:
    """Load an environment again, from its snapshot if it has one. Environment processes call this."""
    folder = _snapshot_folder(spec, run_dir)
    try:
        cls = import_class(spec.target) if folder is None else _import_snapshot_class(folder, spec.target)
    except RollbookError:
        raise
    except (Exception, SystemExit) as error:
        module = spec.target.partition(":")[0]
        raise UsageError(f"cannot import {module}: {source.explain_error(error, folder)}") from error
    return construct(cls, spec.args)


def _snapshot_folder(spec: EnvironmentSpec, run_dir: Path | None) -> Path | None:
    if spec.snapshot is None:
        return None
    if run_dir is None:
        raise UsageError(f"environment {spec.spec}: its source is kept in a run directory, and none was given")
    require_unedited(spec, run_dir)
    return (run_dir / spec.snapshot).resolve()


def _import_snapshot_class(folder: Path, target: str) -> type[Environment]:
    module, _, name = target.partition(":")
    cls = reduce(getattr, name.split("."), _import_snapshot(folder, module))
    assert isinstance(cls, type)
    assert issubclass(cls, Environment)
    return cls


def _import_snapshot(folder: Path, module: str) -> ModuleType:
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing but the book writes to a run directory
    try:
        return source.import_from(folder, module)
    finally:
        sys.dont_write_bytecode = writes


def source_files(loaded: LoadedEnvironment) -> dict[str, Path]:
    """Return the user's own files that an environment consists of, by their names relative to its root."""
    root = source_root(loaded)
    if root is None or loaded.path is None:
        return {}
    found = source.import_closure(root, loaded.path, loaded.text) | set(loaded.files)
    found |= set(_data_files(loaded.cls, loaded.path, root))
    return {path.relative_to(root).as_posix(): path for path in found}


def source_root(loaded: LoadedEnvironment) -> Path | None:
    """Return the folder that the user's own source is imported from; None for an installed package."""
    return None if loaded.path is None else _module_root(loaded.path, loaded.spec.target)


def _data_files(cls: type[Environment], path: Path, root: Path) -> Iterable[Path]:
    for pattern in cls.files:
        found = [f.resolve() for f in sorted(path.parent.glob(pattern)) if f.is_file()]
        if not found:
            raise UsageError(f"{cls.__name__}.files: nothing matches {pattern!r} next to {source.display_path(path)}")
        for file in found:
            if not file.is_relative_to(root):
                raise UsageError(
                    f"{cls.__name__}.files: {pattern!r} is outside {source.display_path(root)}; move it inside"
                )
            yield file


def _module_root(path: Path, target: str) -> Path:
    """Return the folder that the target's module is imported from."""
    module = target.partition(":")[0]
    depth = module.count(".") + (1 if path.name == "__init__.py" else 0)
    return path.parents[depth]


def _installed_digest(target: str) -> str:
    """Return a digest of how an installed environment scores: of a scoring version for a built-in, else of its file."""
    if target.startswith(BUILTIN_PREFIX):
        return scoring_digest(import_class(target).scoring_version)
    try:
        found = importlib.util.find_spec(target.partition(":")[0])
    except (ValueError, ModuleNotFoundError):  # a notebook's class has no file to digest
        return ""
    if found is None or not found.origin or not Path(found.origin).is_file():
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
