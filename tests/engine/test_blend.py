"""A blend: several environments in one book, each on its own terms; what is wrong in its file is one line."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rollbook import Collector, run, run_async
from rollbook.book import Book, ChunkClaimer, rollouts
from rollbook.core import Limits, ModelSpec, Sampling, derive_seed
from rollbook.engine.blends import load_run_environments, read_blend
from rollbook.engine.planning import plan
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.request import Request
from rollbook.engine.reverification import parse_replacements, reverify
from rollbook.engine.runs import RunResult, extend, plan_request, resume
from rollbook.errors import Shortfall, UsageError
from support.books import open_round
from support.endpoint import Endpoint
from support.sums import SUMS, write_script
from support.tool_environment import ASYNC, SYNC

KEYED = SUMS.replace(
    "        return rollout.text",
    "        assert task.id.startswith('sum-') and rollout.task.id == task.id\n        return rollout.text",
)
TWO = """
tasks: 9
environments:
  - env: sums_env.py:Sums
    weight: 2
    samples: 3
  - env: desk_env.py:Desk
    name: desk
"""


def written(folder: Path, text: str = TWO, **sources: str) -> str:
    """A blend and the environments it names; gives its path."""
    for name, source in {"sums_env": KEYED, "desk_env": SYNC, **sources}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(source)
    (folder / "blend.yaml").write_text(text)
    return str(folder / "blend.yaml")


def planned(folder: Path, text: str = TWO, **more: Any) -> Book:
    return Book(plan_request(Request(env=written(folder, text), model=[any_script(folder)], **asked(folder, more))))


def asked(folder: Path, more: dict[str, Any]) -> dict[str, Any]:
    return {"out": str(folder / "run"), **more}


def any_script(folder: Path, **extra: object) -> str:
    """A script that says the same to everyone."""
    path = folder / "any.jsonl"
    path.write_text(json.dumps({"answer": "4", **extra}) + "\n")
    return f"scripted:{path}"


def counts(book: Book) -> dict[str, int]:
    found: dict[str, int] = {}
    for task in book.tasks:
        found[task.env] = found.get(task.env, 0) + 1
    return found


def test_one_book_holds_all_and_numbers_are_per_environment(tmp_path: Path) -> None:
    result = run(written(tmp_path), any_script(tmp_path), out=tmp_path / "run", samples=2)
    assert isinstance(result, RunResult)
    sums, desk = result.report.environments["Sums"], result.report.environments["desk"]
    assert (sums.requested, desk.requested, result.report.scored) == (18, 6, 24)
    assert (sums.mean, desk.mean) == (1 / 6, 1 / 3)  # 2 + 2 of six sums; a sum of nothing is 0 at the first desk
    found = list(rollouts(Book(tmp_path / "run")))
    assert {r.key[0] for r in found} == {f"Sums/sum-{i}" for i in range(6)} | {f"desk/desk-{i}" for i in range(3)}
    assert all(r.seed == derive_seed(0, *r.key) for r in found)


def test_the_terms_of_each_are_frozen_and_a_plain_run_has_none(tmp_path: Path) -> None:
    text = TWO + "    sampling: {temperature: 1e-3, top_k: 5}\n    limits: {max_turns: 4}\n    tool_format: text\n"
    request = {"sampling": Sampling(0.5, extra={"min_p": 0.1}), "limits": Limits(verify_s=9)}
    environments = planned(tmp_path, text, **request).manifest.environments
    desk, sums = environments["desk"].terms, environments["Sums"].terms
    assert desk
    assert sums
    assert desk.sampling == Sampling(0.001, extra={"min_p": 0.1, "top_k": 5})
    assert desk.limits == Limits(verify_s=9, max_turns=4)
    assert (desk.tool_format, desk.samples, desk.prefix) == ("text", 1, "desk/")
    assert (sums.sampling, sums.limits, sums.tool_format) == (*request.values(), "native")
    alone = Request(env=f"{tmp_path}/sums_env.py:Sums", out=str(tmp_path / "alone"))
    assert plan(alone, load_run_environments(alone), ModelSpec("toy")).manifest.environments["Sums"].terms is None


def test_an_environment_may_omit_a_parameter(tmp_path: Path) -> None:
    terms = (
        planned(tmp_path, TWO + "    sampling: {seed: null, temperature: null}\n").manifest.environments["desk"].terms
    )
    assert terms
    assert terms.sampling == Sampling(extra={"seed": None, "temperature": None})
    with pytest.raises(UsageError, match=r"blend.yaml:\d+: sampling: seed is not a sampling parameter"):
        planned(tmp_path, TWO + "    sampling: {seed: 3}\n")


def test_each_is_asked_with_its_own_sampling_and_its_own_tools(tmp_path: Path) -> None:
    text = TWO + "    sampling: {temperature: 0.25, max_tokens: 99, top_k: 5}\n"

    async def go() -> list[dict[str, Any]]:
        async with Endpoint() as endpoint:
            result = await run_async(
                written(tmp_path, text), endpoint.url, out=tmp_path / "run", sampling=Sampling(0.75), probe=False
            )
            assert result.report.scored == 21
            return endpoint.bodies

    bodies = asyncio.run(go())
    tooled, plain = [b for b in bodies if "tools" in b], [b for b in bodies if "tools" not in b]
    assert len(plain) == 18
    assert {(b["temperature"], b["max_tokens"], b["top_k"]) for b in tooled} == {(0.25, 99, 5)}
    assert {(b["temperature"], b["max_tokens"], b.get("top_k")) for b in plain} == {(0.75, 1024, None)}
    assert Book(tmp_path / "run").manifest.sampling == Sampling(0.75)


def test_each_is_verified_and_played_within_its_own_limits(tmp_path: Path) -> None:
    slow = SUMS.replace("        return roll", "        import time; time.sleep(0.4)\n        return roll")
    text = """
environments:
  - {env: "slow_env.py:Sums?tasks=1", name: hasty, limits: {verify_s: 0.1}}
  - {env: "slow_env.py:Sums?tasks=1", name: patient}
  - {env: desk_env.py:Desk, limit: 1, limits: {max_turns: 1}}
"""

    async def go() -> None:
        async with Endpoint() as endpoint:
            blend = written(tmp_path, text, slow_env=slow)
            with pytest.raises(Shortfall) as caught:
                await run_async(blend, endpoint.url, out=tmp_path / "run")
            assert (caught.value.scored, caught.value.failed) == (2, {"verifier_timeout": 1})
            assert [key[0] for key in caught.value.missing] == ["hasty/sum-0"]

    asyncio.run(go())
    ended = {r.task.env: r.ended for r in rollouts(Book(tmp_path / "run"))}
    assert ended == {"patient": "", "Desk": "max_turns"}


def test_environments_see_their_own_ids_also_in_state_on_the_loop_and_before_a_judge(tmp_path: Path) -> None:
    asking = KEYED + (
        "\n    async def appeal(self, task, rollout, score, judge):"
        "\n        assert task.id.startswith('sum-') and rollout.task.id == task.id"
        "\n        return Score(score.reward, info={'judge': await judge.ask(task.id)})"
    )
    looping = ASYNC.replace(
        "    def verify(self, task, rollout):", "    async def verify(self, task, rollout):"
    ).replace(
        'assert rollout.outcome["task"] == task.id', 'assert rollout.outcome["task"] == task.id == rollout.task.id'
    )
    text = "environments: [{env: asking_env.py:Sums, limit: 1}, {env: loop_env.py:Desk, limit: 1}]"
    blend = written(tmp_path, text, asking_env=asking, loop_env=looping)
    (tmp_path / "judge.jsonl").write_text('{"task": "Sums/sum-0", "answer": "heard"}\n')
    result = run(blend, any_script(tmp_path), out=tmp_path / "run", judge=f"scripted:{tmp_path}/judge.jsonl")
    assert isinstance(result, RunResult)
    found = {r.task.env: r for r in rollouts(Book(tmp_path / "run"))}
    assert found["Sums"].score
    assert found["Sums"].score.info == {"judge": "heard"}
    assert found["Desk"].outcome["task"] == "desk-0"


def test_a_judge_that_none_of_them_asks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--judge: Sums, Desk uses no judge"):
        run(written(tmp_path), any_script(tmp_path), out=tmp_path / "run", judge=any_script(tmp_path))


def test_files_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    source = KEYED.replace("Environment):", "Environment):\n    from helpers import FACTOR").replace(
        "            yield", "            from helpers import FACTOR; assert FACTOR == self.FACTOR\n            yield"
    )
    text = "environments: [{env: 'a/env.py:Sums'}, {env: 'b/env.py:Sums', name: other}]"
    helpers = {"a/helpers": "FACTOR = 1\n", "b/helpers": "FACTOR = 2\n"}
    blend = written(tmp_path, text, **{"a/env": source, "b/env": source}, **helpers)
    result = run(blend, write_script(tmp_path), out=tmp_path / "run", limit=4)
    assert isinstance(result, RunResult)
    kept = {p.relative_to(tmp_path / "run/source").as_posix(): p.read_text() for p in (tmp_path / "run").rglob("h*.py")}
    assert kept == {"Sums/helpers.py": helpers["a/helpers"], "other/helpers.py": helpers["b/helpers"]}
    (tmp_path / "b/helpers.py").write_text("FACTOR = 3\n")
    assert extend(tmp_path / "run", 2, {}, SilentDisplay()).report.scored == 16


def test_a_snapshot_that_was_edited_is_named(tmp_path: Path) -> None:
    book = planned(tmp_path)
    (book.path / "source/desk/desk_env.py").write_text("")
    with pytest.raises(UsageError, match=r"source/desk was edited"):
        resume(book.path, {}, None, SilentDisplay())


def test_a_blend_is_scored_again_as_it_is(tmp_path: Path) -> None:
    run(written(tmp_path), any_script(tmp_path), out=tmp_path / "run")
    again = asyncio.run(reverify(tmp_path / "run", tmp_path / "again", (), "all", SilentDisplay()))
    assert (again.verified, again.changed, again.report.scored) == (21, 0, 21)
    assert Book(again.path).manifest.environments == Book(tmp_path / "run").manifest.environments
    assert (again.path / "source/Sums/sums_env.py").exists()


def test_the_only_environment_of_a_blend_keeps_its_terms_under_another_verifier(tmp_path: Path) -> None:
    text = "environments: [{env: 'sums_env.py:Sums', limit: 3, limits: {verify_s: 7}}]"
    run(written(tmp_path, text), any_script(tmp_path), out=tmp_path / "run")
    mended = tmp_path / "mended.py"
    mended.write_text(KEYED.replace("endswith(task.answer)", "isdigit()"))
    again = asyncio.run(reverify(tmp_path / "run", tmp_path / "again", [f"{mended}:Sums"], "all", SilentDisplay()))
    assert (again.report.overall.mean, again.changed) == (1.0, 2)
    assert (
        Book(again.path).manifest.environments["Sums"].terms
        == Book(tmp_path / "run").manifest.environments["Sums"].terms
    )


def test_extend_brings_every_environment_to_so_many_samples(tmp_path: Path) -> None:
    run(written(tmp_path), any_script(tmp_path), out=tmp_path / "run")
    report = extend(tmp_path / "run", 2, {}, SilentDisplay()).report
    assert {name: one.requested for name, one in report.environments.items()} == {"Sums": 18, "desk": 6}
    assert extend(tmp_path / "run", 4, {}, SilentDisplay()).report.scored == 36
    with pytest.raises(UsageError, match="has 4 samples of every task already"):
        extend(tmp_path / "run", 4, {}, SilentDisplay())


def test_several_workers_fill_a_blend(tmp_path: Path) -> None:
    result = run(written(tmp_path), any_script(tmp_path), out=tmp_path / "run", workers=2)
    assert isinstance(result, RunResult)
    assert result.report.scored == 21


def test_environments_get_ahead_side_by_side(tmp_path: Path) -> None:
    text = (
        "environments: [{env: 'sums_env.py:Sums?tasks=40'}, {env: 'sums_env.py:Sums?tasks=8', name: few, samples: 2}]"
    )
    book = planned(tmp_path, text)
    claims, rows = ChunkClaimer(book, open_round(book), "a"), []
    while claim := claims.claim_next():
        rows += [row for row, _, _ in claim.todo]
    assert sorted(rows) == sorted([*range(40), *range(40, 48), *range(40, 48)])
    halfway = rows[: len(rows) // 2]
    assert 10 <= sum(row < 40 for row in halfway) <= 22
    assert sum(row >= 40 for row in halfway) >= 6


def test_shares_limits_and_what_there_is_decide_how_many_tasks_each_gives(tmp_path: Path) -> None:
    text = """
tasks: 100
environments:
  - {env: "sums_env.py:Sums?tasks=12", weight: 0.3}
  - {env: desk_env.py:Desk, name: desk, limit: 2, weight: 0.2}
  - {env: gsm8k, weight: 0.5}
  - {env: gsm8k, name: never, weight: 1e-9}
"""
    said: list[str] = []
    request = Request(env=written(tmp_path, text), model=[any_script(tmp_path)], out=str(tmp_path / "run"))
    assert counts(Book(plan_request(request, said.append))) == {"Sums": 12, "desk": 2, "gsm8k": 50}
    assert said == [
        "never: left out, since its share of the tasks is zero",
        "Sums: 12 tasks instead of its share of 30: it has no more",
        "desk: 2 tasks instead of its share of 20: its limit",
    ]


def test_without_a_total_each_gives_all_it_has_up_to_its_limit_and_the_runs(tmp_path: Path) -> None:
    text = "environments: [{env: sums_env.py:Sums}, {env: desk_env.py:Desk, limit: 3}]"
    assert counts(planned(tmp_path, text)) == {"Sums": 10, "Desk": 3}
    assert counts(planned(tmp_path, text, limit=5, out=str(tmp_path / "b"))) == {"Sums": 5, "Desk": 3}


def test_tasks_are_taken_as_a_stream(tmp_path: Path) -> None:
    endless = SUMS.replace("for i in range(self.count):", "import itertools\n        for i in itertools.count():")
    text = "tasks: 6\nenvironments: [{env: endless_env.py:Sums}, {env: desk_env.py:Desk}]"
    written(tmp_path, text, endless_env=endless)
    assert counts(planned(tmp_path, text)) == {"Sums": 3, "Desk": 3}


def test_tasks_may_be_picked_by_the_ids_of_the_book(tmp_path: Path) -> None:
    book = planned(tmp_path, tasks=["desk/desk-3", "desk/desk-1"], sample=2)
    assert list(book.manifest.environments) == ["desk"]
    assert [task.id for task in book.tasks] == ["desk/desk-1", "desk/desk-3"]
    assert book.plan.parts[0].samples == (2, 3)
    for task, words in ("sum-1", "write Sums/ID, desk/ID"), ("Sums/sum-99", "--task Sums/sum-99"):
        with pytest.raises(UsageError, match=words):
            planned(tmp_path, tasks=[task], out=str(tmp_path / "other"))


def test_rows_and_templates_lie_beside_the_blend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "blends"
    text = "environments: [{env: string_match, data: rows.jsonl, template: ask.txt}, {env: 'sums_env:Sums'}]"
    blend = written(folder, text, **{"inner/x": ""})
    (folder / "rows.jsonl").write_text('{"id": "fr", "country": "France", "answer": "Paris"}\n')
    (folder / "ask.txt").write_text("The capital of {country}?")
    monkeypatch.chdir(tmp_path)
    book = Book(plan_request(Request(env="blends/blend.yaml", model=[any_script(tmp_path)], out="run")))
    assert [task.id for task in book.tasks][:2] == ["string_match/fr", "Sums/sum-0"]
    assert book.tasks.read(0).prompt == "The capital of France?"
    assert blend.endswith("blends/blend.yaml")


def test_what_an_anchor_brings_gives_way_to_what_stands_there(tmp_path: Path) -> None:
    text = """
environments:
  - &first {env: gsm8k, samples: 2, sampling: &cool {temperature: 0.1, top_k: 3}}
  - {<<: *first, name: again, sampling: {<<: *cool, temperature: 0.2}}
"""
    _, again = (entry for _, entry in read_blend(written(tmp_path, text)).entries)
    assert (again.env, again.samples, again.sampling) == ("gsm8k", 2, {"temperature": 0.2, "top_k": 3})


GSM = "environments:\n  - env: gsm8k\n"
BAD = {
    "": "blend.yaml:1: there is nothing in the file",
    "# only words\n": "blend.yaml:1: there is nothing in the file",
    "environments: [\n": "blend.yaml:2: not YAML: ",
    "a: 1\n b: 2\n": "blend.yaml:2: not YAML: ",
    "\tenvironments: 1\n": "blend.yaml:1: not YAML: ",
    "--- 1\n--- 2\n": "blend.yaml:2: not YAML: but found another document",
    "environments: *gone\n": "blend.yaml:1: not YAML: found undefined alias",
    "- gsm8k\n": "blend.yaml:1: a blend is written as `key: value`, not as a list",
    "gsm8k\n": "blend.yaml:1: a blend is written as `key: value`, not as 'gsm8k'",
    "tasks: 3\n": "blend.yaml:1: no environments: write environments:",
    "tasks: 3\nenvironments: []\n": "blend.yaml:2: no environments",
    "environments: gsm8k\n": "blend.yaml:1: environments is written as a list",
    "environments:\n": "blend.yaml:1: environments is written as a list",
    "environments:\n  - gsm8k\n": "blend.yaml:2: an environment is written as `key: value`, not as 'gsm8k'",
    "environments:\n  - name: x\n": "blend.yaml:2: an environment without env",
    GSM + "roles:\n  critic: 7\n": "blend.yaml:4: ",
    GSM + "model: x\n": "blend.yaml:3: a blend has no 'model'; there are tasks, environments",
    GSM
    + "    wieght:\n      - 2\n": "blend.yaml:3: an environment has no 'wieght'; there are env, name, weight, samples",
    GSM + "    env: math\n": "blend.yaml:3: env is given twice",
    GSM + "    ? [a]\n    : 1\n": "blend.yaml:3: a key has to be one word",
    GSM + "    weight: 2\n": "blend.yaml:3: weight: shares out the blend's tasks; give their number with `tasks: N`",
    "tasks: 4\n" + GSM + "    weight: -1\n": "blend.yaml:4: weight: expected float > 0",
    "tasks: 4\n" + GSM + "    weight: 0\n": "blend.yaml:4: weight: expected float > 0",
    "tasks: 4\n" + GSM + "    weight: .nan\n": "blend.yaml:4: nan cannot be written as JSON",
    "tasks: 4\n" + GSM + "    weight: heavy\n": "blend.yaml:4: weight: expected float, got str",
    "tasks: 0\n" + GSM: "blend.yaml:1: tasks: expected int >= 1",
    "tasks: 1.5\n" + GSM: "blend.yaml:1: tasks: expected int, got float",
    GSM + "    samples: 0\n": "blend.yaml:3: samples: expected int >= 1",
    GSM + "    samples: true\n": "blend.yaml:3: samples: expected int, got bool",
    GSM + "    limit: many\n": "blend.yaml:3: limit: expected int, got str",
    GSM + "    name: no\n": "blend.yaml:3: name: expected str, got bool",
    GSM + "    name: a/b\n": "blend.yaml:3: name: 'a/b' may have letters",
    GSM + "    name: ..\n": "blend.yaml:3: name: '..' may have letters",
    GSM + "    name: 2024-01-01\n": "blend.yaml:3: 2024-01-01 cannot be written as JSON; put quotes around it",
    GSM + "    tool_format: xml\n": "blend.yaml:3: tool_format: invalid enum value 'xml'",
    GSM + "    sampling: 3\n": "blend.yaml:3: sampling: expected object, got int",
    GSM + "    sampling: {temperature: hot}\n": "blend.yaml:3: temperature: expected float, got str",
    GSM + "    sampling:\n      top_p: 2\n": "blend.yaml:4: top_p: expected float <= 1",
    GSM + "    sampling: {seed: 4}\n": "blend.yaml:3: sampling: seed is not a sampling parameter",
    GSM + "    sampling: {extra: {a: 1}}\n": "blend.yaml:3: sampling: extra is not a sampling parameter",
    GSM + "    sampling: {1: a}\n": "blend.yaml:3: sampling: expected str, got int",
    GSM + "    limits: !!binary x\n": "blend.yaml:3: failed to decode base64 data",
    GSM + "    limits: {max_trun: 4}\n": "blend.yaml:3: limits has no 'max_trun'; there are verify_s, tool_s",
    GSM + "    limits: {max_turns: 0}\n": "blend.yaml:3: max_turns: 0 is not from 1 to",
    GSM + "    limits:\n      verify_s: -1\n": "blend.yaml:4: verify_s: -1.0 is not from 0.001 to",
    GSM + "    data: &a [*a]\n": "blend.yaml:3: found unconstructable recursive node",
    GSM + "    data: !!python/object:os.system x\n": "blend.yaml:3: could not determine a constructor",
    GSM + "    <<: 3\n": "blend.yaml:",
    GSM + "  - env: gsm8k\n": "blend.yaml:3: two environments are called gsm8k: give this one another `name:`",
    GSM + "  - {env: humaneval, name: GSM8K}\n": "blend.yaml:3: two environments are called GSM8K",
    GSM + "  - env: gsm9k\n": "blend.yaml:3: unknown environment 'gsm9k'; did you mean gsm8k?",
    GSM + "  - env: nowhere.py:X\n": "blend.yaml:3: environment file .*nowhere.py does not exist",
    GSM + "  - env: sums_env.py:Sum\n": "blend.yaml:3: .*sums_env.py has no Sum; did you mean Sums",
    GSM + "  - env: other.yaml\n": "blend.yaml:3: other.yaml is a blend of environments",
    GSM + "  - {env: sums_env.py:Sums, data: x.jsonl}\n": "blend.yaml:3: data .*x.jsonl: Sums takes no data",
    "environments: [{env: a/loop.py:Desk}, {env: b/loop.py:Desk, name: o}]": "1: o and Desk each have a loop.py",
}


@pytest.mark.parametrize(("text", "words"), BAD.items(), ids=range(len(BAD)))
def test_a_mistake_in_the_file_is_one_line_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    blend = written(tmp_path, text, **{"a/loop": ASYNC, "b/loop": ASYNC})
    with pytest.raises(UsageError, match=words.replace("|", r"\|").replace("[", r"\[")) as caught:
        run(blend, any_script(tmp_path), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_file_that_grows_without_bound_or_is_no_text_is_refused(tmp_path: Path) -> None:
    laughs = "\n".join(f"      l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12))
    blend = written(tmp_path, f"{GSM}    sampling:\n      l0: &l0 [ha]\n{laughs}\n")
    with pytest.raises(UsageError, match="more than 100000 values"):
        read_blend(blend)
    Path(blend).write_bytes(b"environments: \xff\n")
    with pytest.raises(UsageError, match=r"not UTF-8 \(byte 15\)"):
        read_blend(blend)
    with pytest.raises(UsageError, match=r"gone\.yaml: No such file or directory; check the path"):
        read_blend(tmp_path / "gone.yaml")
    Path(blend).write_text("[" * 5000)
    with pytest.raises(UsageError, match="not YAML"):
        read_blend(blend)


def test_native_tool_calls_are_refused_for_a_model_that_parses_none(tmp_path: Path) -> None:
    request = Request(env=written(tmp_path, TWO + "    tool_format: native\n"), out=str(tmp_path / "run"))
    with pytest.raises(
        UsageError, match=r"blend\.yaml:7: --tool-format native: the embedded model parses no tool calls"
    ):
        plan(request, load_run_environments(request), ModelSpec("small", "embedded"))


@pytest.mark.parametrize("option", ["data", "template"])
def test_rows_for_the_whole_run_are_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(UsageError, match="sets the rows of each environment"):
        run(written(tmp_path), any_script(tmp_path), out=tmp_path / "run", **{option: "x"})  # type: ignore[arg-type]


def test_only_run_and_plan_take_a_blend(tmp_path: Path) -> None:
    async def go() -> None:
        async with Collector(written(tmp_path), any_script(tmp_path)):
            pass

    with pytest.raises(UsageError, match="is a blend of environments, which only run and plan take"):
        asyncio.run(go())


def test_one_environment_of_a_blend_gets_another_verifier_and_the_others_keep_theirs(tmp_path: Path) -> None:
    run(written(tmp_path), any_script(tmp_path), out=tmp_path / "run")
    mended = tmp_path / "mended.py"
    mended.write_text(KEYED.replace("endswith(task.answer)", "isdigit()"))
    again = asyncio.run(reverify(tmp_path / "run", tmp_path / "again", [f"Sums={mended}:Sums"], "all", SilentDisplay()))
    before, after = (Book(path).manifest.environments for path in (tmp_path / "run", again.path))
    assert (after["desk"], after["Sums"].terms) == (before["desk"], before["Sums"].terms)
    assert {change.task.partition("/")[0] for change in again.changes} == {"Sums"}
    assert again.report.environments["Sums"].mean == 1.0
    assert sorted(p.name for p in (again.path / "source" / "Sums").iterdir()) == ["mended.py"]


@pytest.mark.parametrize(
    ("given", "names", "words"),
    [
        (["new.py"], ["a", "b"], "--env new.py: name the environment it replaces: NAME=new.py; there are a, b"),
        (["c=new.py"], ["a", "b"], "there are a, b"),
        (["a=x.py", "a=y.py"], ["a", "b"], "give one environment for a"),
        (["a="], ["a", "b"], "give one environment for a"),
        (["x.py", "y.py"], ["a"], "give one environment for a"),
    ],
)
def test_a_verifier_that_has_no_place_is_refused(given: list[str], names: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_replacements(given, names)


def test_where_there_is_one_environment_its_name_may_be_left_out() -> None:
    assert (
        parse_replacements(["x.py:X?a=1"], ["a"]) == parse_replacements(["a=x.py:X?a=1"], ["a"]) == {"a": "x.py:X?a=1"}
    )


def test_the_oracle_is_refused_before_the_start_where_an_environment_knows_no_solutions(tmp_path: Path) -> None:
    task = Path(__file__).parents[1] / "containers" / "tasks" / "write-word"
    words = (
        "from rollbook import Container, Environment, Task\n"
        "class Words(Environment):\n"
        '    container = Container(image="debian:bookworm")\n'
        "    def tasks(self):\n        yield Task('a', 'x')\n"
        "    async def verify(self, task, rollout, container):\n        return 1.0\n"
    )
    text = f"environments:\n  - env: harbor:{task}\n    name: word\n  - env: words.py:Words\n"
    blend = written(tmp_path, text, words=words)
    refusal = r"^--agent oracle: Words has no solve\(task, state\), so it knows no solutions$"
    with pytest.raises(UsageError, match=refusal):
        run(blend, agent="oracle", out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    plan_request(Request(env=blend, agent="nop", out=str(tmp_path / "nop")))
    with pytest.raises(UsageError, match="cannot be part of task ids: give it another one with `name:`"):
        run(written(tmp_path, text.replace("    name: word\n", "")), agent="oracle", out=str(tmp_path / "run"))
