"""A blend of a file, a built-in and an environment with tools: from the command line, killed and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.alive import eventually
from support.book_assertions import assert_adds_up, assert_complete, scored_keys, seeds_of
from support.commands import Commands, Served
from support.tool_environment import SYNC

BLEND = """
tasks: 60
environments:
  - env: sums_env.py:Sums?tasks=30
    samples: 3
  - env: desk_env.py:Desk?tasks=20
    name: desk
    samples: 2
    limits: {max_turns: 4}
  - env: gsm8k
    sampling: {temperature: 0.5, max_tokens: 64}
"""
REQUESTED = 20 * 3 + 20 * 2 + 20


def write_blend(folder: Path, sums: str, text: str = BLEND) -> Path:
    """The blend beside the environments it names; `sums` is there already."""
    assert sums.startswith(str(folder / "sums_env.py"))
    (folder / "desk_env.py").write_text(SYNC)
    (folder / "blend.yaml").write_text(text)
    return folder / "blend.yaml"


def test_a_killed_blend_is_finished_by_resume_and_nothing_is_asked_twice(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    blend, endpoint, run = write_blend(tmp_path, sums), serve("--delay-s", "0.05"), tmp_path / "run"
    process = rollbook.start("run", blend, "-m", endpoint.url, "-c", 8, "-o", run)
    assert eventually(lambda: (run / "run.json").exists() and len(scored_keys(run)) >= 30, 30), process.stderr
    process.kill()
    kept, before = scored_keys(run), endpoint.seeds
    assert 0 < len(kept) < REQUESTED
    assert {task.partition("/")[0] for task, _ in kept} == {"Sums", "desk", "gsm8k"}, "one came after the other"
    (tmp_path / "desk_env.py").unlink()
    blend.unlink()
    endpoint.switch("ok", delay_s=0.0)
    done = rollbook.run("resume", run, "--json")
    assert done.code == 0, done.stderr
    assert_adds_up(done.json, REQUESTED)
    assert_complete(run)
    assert not [seed for seed in seeds_of(set(kept)) if endpoint.seeds[seed] > before[seed]]
    environments = done.json["environments"]
    assert {name: one["scored"] for name, one in environments.items()} == {"Sums": 60, "desk": 40, "gsm8k": 20}
    assert (environments["desk"]["mean"], environments["gsm8k"]["mean"]) == (1.0, 0.0)
    assert rollbook.nothing_left()


def test_plan_and_work_take_a_blend_and_say_what_it_could_not_give(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    blend, endpoint = write_blend(tmp_path, sums, BLEND.replace("tasks=20", "tasks=5")), serve()
    planned = rollbook.run("plan", blend, "-m", endpoint.url, "--model-name", "mock", "-n", 10, "-o", "run")
    assert (planned.code, planned.stdout) == (0, "run\n")
    assert "desk: 5 tasks instead of its share of 20: it has no more" in planned.stderr
    assert "Sums: 10 tasks instead of its share of 20: its limit" in planned.stderr
    assert endpoint.calls == 0
    worked = rollbook.run("work", "run")
    assert worked.code == 0, worked.stderr
    assert "50/50 scored" in worked.stdout
    assert [line.split()[0] for line in worked.stdout.splitlines()[2:5]] == ["Sums", "desk", "gsm8k"]
    again = rollbook.run("reverify", "run", "-o", "again")
    assert "50 rollouts verified again, 0 rewards changed" in again.stdout, again.stderr


def test_a_mistake_is_one_line_and_exit_2(rollbook: Commands, sums: str, tmp_path: Path) -> None:
    write_blend(tmp_path, sums, BLEND.replace("limits:", "limit_s:"))
    for words in (("run", "blend.yaml", "-o", "run"), ("plan", "blend.yaml", "-o", "run")):
        done = rollbook.run(*words)
        assert done.code == 2
        assert done.complaint.startswith("rollbook: blend.yaml:9: an environment has no 'limit_s'; there are env, name")
    for words in (("check", "blend.yaml"), ("score", "blend.yaml", "a")):
        done = rollbook.run(*words)
        assert done.code == 2
        assert "blend.yaml is a blend of environments, which only run and plan take" in done.complaint
    missing = rollbook.run("run", "gone.yml", "-o", "run")
    assert (missing.code, missing.complaint) == (2, "rollbook: gone.yml: No such file or directory; check the path")
    assert not (tmp_path / "run").exists()
