"""The snapshot: the user's own source as it was when the run was planned, kept in the run directory and run there."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from types import ModuleType

import msgspec

from rollbook.core.manifest import EnvironmentSpec
from rollbook.environments import source
from rollbook.environments.environment import Environment
from rollbook.environments.registry import Loaded, construct
from rollbook.errors import UsageError


def snapshot(loaded: Loaded, folder: Path, beneath: str = "") -> EnvironmentSpec:
    """Pin what an environment was loaded from: the user's own source is copied to `folder`, a package is digested.

    `folder` lies in the run directory. The sources of several environments lie apart, each `beneath` it.
    """
    if loaded.path is None:
        return msgspec.structs.replace(loaded.spec, digest=_package_digest(loaded.spec.target))
    files = sources(loaded)
    for name, path in files.items():
        (folder / beneath / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / beneath / name)
    kept = (Path(folder.name) / beneath).as_posix()
    return msgspec.structs.replace(loaded.spec, digest=digest(files), snapshot=kept, origin=source.shown(loaded.path))


def digest(files: Mapping[str, Path]) -> str:
    """The sha256 over names and bytes of files, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(files):
        content = files[name].read_bytes()
        total.update(f"{len(name.encode())} {name} {len(content)} ".encode() + content)
    return total.hexdigest()


def changed(spec: EnvironmentSpec, run_dir: Path) -> str | None:
    """The first file that is no longer what the run was planned with; None when all is the same or out of sight."""
    if spec.snapshot is None:
        module = spec.target.partition(":")[0]
        return module if spec.digest and _package_digest(spec.target) != spec.digest else None
    origin = Path(spec.origin)
    if not origin.is_file():
        return None
    root = _root(origin.resolve(), spec.target)
    for name, kept in sorted(_kept(run_dir / spec.snapshot).items()):
        now = root / name
        if not now.is_file() or now.read_bytes() != kept.read_bytes():
            return source.shown(now)
    return None


def tampered(spec: EnvironmentSpec, run_dir: Path) -> bool:
    """Whether the copy in the run directory is no longer the one the run was planned with."""
    return spec.snapshot is not None and digest(_kept(run_dir / spec.snapshot)) != spec.digest


def load(spec: EnvironmentSpec, run_dir: Path | None = None) -> Environment:
    """The environment again, from its snapshot if it has one. This is what environment processes call."""
    module_name, _, name = spec.target.partition(":")
    if spec.snapshot is None:
        module = importlib.import_module(module_name)
    elif run_dir is None:
        raise UsageError(f"environment {spec.spec}: its source is kept in a run directory, and none was given")
    else:
        module = _import_kept((run_dir / spec.snapshot).resolve(), module_name)
    cls = reduce(getattr, name.split("."), module)
    assert isinstance(cls, type)
    assert issubclass(cls, Environment)
    return construct(cls, spec.args)


def _import_kept(folder: Path, module: str) -> ModuleType:
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing but the book writes to a run directory
    try:
        return source.import_from(folder, module)
    finally:
        sys.dont_write_bytecode = writes


def sources(loaded: Loaded) -> dict[str, Path]:
    """The user's own files that an environment is made of, by their names beneath its root."""
    root = root_of(loaded)
    if root is None or loaded.path is None:
        return {}
    found = source.closure(root, loaded.path) | set(loaded.files)
    found |= set(_data_files(loaded.cls, loaded.path, root))
    return {path.relative_to(root).as_posix(): path for path in found}


def root_of(loaded: Loaded) -> Path | None:
    """The folder that the user's own source is imported from; None for an installed package."""
    return None if loaded.path is None else _root(loaded.path, loaded.spec.target)


def _data_files(cls: type[Environment], path: Path, root: Path) -> Iterable[Path]:
    for pattern in cls.files:
        found = [f.resolve() for f in sorted(path.parent.glob(pattern)) if f.is_file()]
        if not found:
            raise UsageError(f"{cls.__name__}.files: nothing matches {pattern!r} beside {source.shown(path)}")
        for file in found:
            if not file.is_relative_to(root):
                raise UsageError(
                    f"{cls.__name__}.files: {pattern!r} lies outside {source.shown(root)}; move it beneath"
                )
            yield file


def _kept(folder: Path) -> dict[str, Path]:
    files = (f for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    return {f.relative_to(folder).as_posix(): f for f in files}


def _root(path: Path, target: str) -> Path:
    """The folder that the target's module is imported from."""
    module = target.partition(":")[0]
    depth = module.count(".") + (1 if path.name == "__init__.py" else 0)
    return path.parents[depth]


def _package_digest(target: str) -> str:
    try:
        found = importlib.util.find_spec(target.partition(":")[0])
    except ValueError:  # a notebook's class has no file to digest
        return ""
    if found is None or not found.origin or not Path(found.origin).is_file():
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
