"""The embedded model's server: its settings, and its threads, which are as many as there are idle cores."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.models import embedded_server
from rollbook.processes import module_argv, start_ready

BEFORE = "cpu  100 0 50 1000 200 0 10 5 0 0\ncpu0 1 2 3\n"


class Machine:
    """The files in which Linux describes processors, which change while somebody sleeps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.after = BEFORE
        self.write("/proc/stat", BEFORE)
        self.write("/sys/fs/cgroup/cpu.max", "max 100000\n")
        monkeypatch.setattr(embedded_server, "Path", self._find)
        monkeypatch.setattr(embedded_server.time, "sleep", lambda _: self.write("/proc/stat", self.after))
        self.set_cores = lambda count: monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        self.set_cores(6)

    def _find(self, path: str) -> Path:
        return self._folder / path.replace("/", "_")

    def write(self, path: str, text: str) -> None:
        self._find(path).write_text(text)

    def remove(self, path: str) -> None:
        self._find(path).unlink()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("after", "threads"),
    [
        ("cpu  100 0 50 1060 200 0 10 5 0 0\n", 6),  # all idle
        ("cpu  100 0 50 1040 220 0 10 5 0 0\n", 6),  # waiting for a disk is idle too
        ("cpu  130 0 50 1020 210 0 10 5 0 0\n", 3),
        ("cpu  120 10 60 1000 220 0 10 5 0 0\n", 2),
        ("cpu  160 0 50 1000 200 0 10 5 0 0\n", 1),  # none is idle: one is needed all the same
        ("cpu  100 0 50 1030 200 0 10 35 99 99\n", 3),  # stolen time counts; a guest's was counted already
        (BEFORE, 1),  # the clock has not ticked
    ],
)
def test_as_many_threads_as_idle_cores(machine: Machine, after: str, threads: int) -> None:
    machine.after = after
    assert embedded_server.count_idle_cores() == threads


def test_no_more_than_eight_threads(machine: Machine) -> None:
    machine.after = "cpu  100 0 50 1060 200 0 10 5 0 0\n"
    machine.set_cores(32)
    assert embedded_server.count_idle_cores() == 8
    machine.remove("/proc/stat")
    assert embedded_server.count_idle_cores() == 8


@pytest.mark.parametrize(("quota", "threads"), [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1)])
def test_no_more_than_the_control_group_grants(machine: Machine, quota: str, threads: int) -> None:
    machine.after = "cpu  100 0 50 1060 200 0 10 5 0 0\n"
    machine.write("/sys/fs/cgroup/cpu.max", quota)
    assert embedded_server.count_idle_cores() == threads


def test_where_nothing_is_known_every_core_counts(machine: Machine) -> None:
    machine.remove("/proc/stat")
    machine.remove("/sys/fs/cgroup/cpu.max")
    assert embedded_server.count_idle_cores() == 6


RUNTIME = """
import json, os, types

class CommonParams:
    def __init__(self):
        self.model, self.cpuparams, self.cpuparams_batch = (types.SimpleNamespace() for _ in range(3))

class Server:
    listening_address = "http://127.0.0.1:1"

    def __init__(self, params):
        with open(os.environ["SEEN"], "w") as file:
            json.dump(vars(params), file, default=vars)
"""


def test_the_server_publishes_its_address_and_serves_until_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "xllamacpp.py").write_text(RUNTIME)  # a stand-in: the real runtime needs weights
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = ["--weights", "some.gguf", "--slots", "4", "--context", "100", "--threads", "3"]

    async def main() -> None:
        child, info = await start_ready(
            module_argv("rollbook.models.embedded_server", *words),
            timeout_s=30,
            env={**os.environ, "PYTHONPATH": paths, "SEEN": str(tmp_path / "seen.json")},
        )
        try:
            await asyncio.sleep(0.2)
            assert (info, child.returncode) == ({"url": "http://127.0.0.1:1"}, None)
        finally:
            await child.kill_tree()

    asyncio.run(main())
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["model"], seen["n_parallel"], seen["n_ctx"], seen["port"]) == ({"path": "some.gguf"}, 4, 400, 0)
    assert (seen["cpuparams"], seen["cpuparams_batch"]) == ({"n_threads": 3}, {"n_threads": 3})
    assert seen["ui"] is False


def test_the_help_says_what_its_numbers_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(embedded_server, "die_with_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", ["embedded_server", "--help"])
    with pytest.raises(SystemExit, match="0"):
        embedded_server.main()
    printed = " ".join(capsys.readouterr().out.split())
    assert "--context CONTEXT tokens for each slot" in printed
    assert "--threads THREADS 0: the cores that are idle now" in printed


def test_the_server_is_told_its_weights_slots_and_context(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[argparse.Namespace] = []
    monkeypatch.setattr(embedded_server, "die_with_parent", lambda: served.clear())
    monkeypatch.setattr(embedded_server, "serve", served.append)
    words = ["--weights", "w.gguf", "--slots", "4", "--context", "512"]
    monkeypatch.setattr("sys.argv", ["server", *words])
    embedded_server.main()
    assert vars(served[0]) == {"weights": "w.gguf", "slots": 4, "context": 512, "threads": 0}
    for at in (0, 2, 4):
        monkeypatch.setattr("sys.argv", ["server", *words[:at], *words[at + 2 :]])
        with pytest.raises(SystemExit):
            embedded_server.main()


class Waited(Exception):
    """The server waits for its end."""


@pytest.mark.parametrize(("threads", "used"), [(3, 3), (0, 5)])
def test_a_server_has_the_parameters_of_its_model_and_publishes_its_address(
    monkeypatch: pytest.MonkeyPatch, threads: int, used: int
) -> None:
    made: list[Any] = []

    class Params(SimpleNamespace):
        def __init__(self) -> None:
            parts = {name: SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")}
            super().__init__(port=8080, ui=True, **parts)

    def make_server(params: Params) -> SimpleNamespace:
        made.append(params)
        return SimpleNamespace(listening_address="http://127.0.0.1:5")

    def wait() -> None:
        raise Waited

    module = SimpleNamespace(CommonParams=Params, Server=make_server)
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    published: list[Any] = []
    monkeypatch.setattr(embedded_server, "publish_ready", published.append)
    monkeypatch.setattr(embedded_server, "count_idle_cores", lambda: 5)
    monkeypatch.setattr(embedded_server.signal, "pause", wait)
    with pytest.raises(Waited):
        embedded_server.serve(argparse.Namespace(weights="w", slots=4, context=512, threads=threads))
    (params,) = made
    assert (params.model.path, params.port, params.n_parallel, params.n_ctx) == ("w", 0, 4, 2048)
    assert (params.n_threads_http, params.verbosity, params.ui) == (embedded_server.HTTP_THREADS, 1, False)
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == used
    assert published == [{"url": "http://127.0.0.1:5"}]
