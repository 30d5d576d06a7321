"""Who counts as dead, and what of theirs is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rollbook.containers import Owner, temporary_folder
from rollbook.containers.owners import (
    FOLDER_PREFIX,
    choose_leftovers,
    folder_of,
    is_dead,
    list_left_folders,
    read_start,
    remove_own_folder,
)
from rollbook.containers.runtime import LabelledObject

HERE = Owner.current()
DEAD = msgspec.structs.replace(HERE, boot="00000000-0000-0000-0000-000000000000")


def test_this_process_is_alive() -> None:
    assert not is_dead(HERE, HERE)


def test_a_process_that_ended_is_dead_even_as_a_zombie() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = read_start(process.pid)
    assert start is not None
    owner = msgspec.structs.replace(HERE, pid=process.pid, start=start)
    assert not is_dead(owner, HERE)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(owner, HERE)
    process.wait()
    assert is_dead(owner, HERE)


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({"start": HERE.start + 1}, True),  # the number belongs to another process now
        ({"boot": "another"}, True),
        ({"namespace": "pid:[1]"}, False),  # the same number may be someone else there
        ({"host": "elsewhere"}, False),  # shared storage
        ({"host": "elsewhere", "boot": "another"}, False),
    ],
)
def test_only_certain_death_counts(change: dict[str, object], dead: bool) -> None:
    assert is_dead(msgspec.structs.replace(HERE, **change), HERE) is dead


def test_only_what_dead_owners_left_is_chosen() -> None:
    dead = msgspec.structs.replace(HERE, boot="another").label
    objects = [
        LabelledObject("container", "a", HERE.label),
        LabelledObject("container", "b", dead),
        LabelledObject("image", "c", dead),
        LabelledObject("volume", "d", "not ours"),
        LabelledObject("network", "e", ""),
    ]
    assert [each.id for each in choose_leftovers(objects, HERE)] == ["b", "c"]


def test_temporary_folders_of_dead_owners_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for owner in (DEAD, msgspec.structs.replace(DEAD, host="elsewhere")):
        folder_of(owner).mkdir()
    (tmp_path / f"{FOLDER_PREFIX}of-another").mkdir()
    with temporary_folder("copy-") as folder:
        (Path(folder) / "file").write_text("x")
        assert [each.id for each in list_left_folders(HERE)] == [str(folder_of(DEAD))]
        remove_own_folder()
        assert (Path(folder) / "file").exists()
    assert not Path(folder).exists()
    remove_own_folder()
    assert not folder_of(HERE).exists()
