"""The GRPO example: a tiny model learns although its endpoint is killed and a verifier hangs."""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: make test-grpo has an environment with it")

EXAMPLE = Path(__file__).parents[2] / "examples/grpo"
sys.path.insert(0, str(EXAMPLE))

from digits import reward  # noqa: E402
from server import Answer, Engine, Server  # noqa: E402
from tiny import load  # noqa: E402
from train import Plan, Row, Trainer, Training, keep_version, make_rows  # noqa: E402

from rollbook.core import Group, Rollout, Score, Task, Turn  # noqa: E402

SAMPLES = 8
OUTAGE_AT = 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One training with both faults; everything that was trained, and everything that the server sampled."""
    log = SimpleNamespace(groups=[], rows=defaultdict(list), server=None, outages=[])

    def start(server):
        log.server, server.engine.record = server, []

    def before(step):
        if step == OUTAGE_AT:
            log.outages.append(asyncio.create_task(cut_off(log.server)))

    def after(step, groups, rows):
        log.groups += groups
        log.rows[step] += rows

    torch.manual_seed(7)
    environment = f"{EXAMPLE / 'digits.py'}:Digits"
    log.plan = Plan(f"{environment}?hangs=100", steps=50, samples=SAMPLES, max_staleness=20, verify_s=2.0)
    model, log.tokenizer = load()
    log.training = Training(
        log.plan, model, log.tokenizer, tmp_path_factory.mktemp("grpo"), "tiny", start, before, after
    )
    asyncio.run(log.training.run())
    return log


async def cut_off(server):
    """Kill the endpoint while calls are in progress; start it again after a second."""
    killed = False
    while not killed:
        with server.engine._lock:  # the engine stands still: calls that come now are not answered
            await asyncio.sleep(0.05)
            if killed := bool(server.engine._waiting):
                await server.kill()
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)
    await server.start()


def rows_of(log):
    return [row for rows in log.rows.values() for row in rows]


def split_row(row):
    """The prompt and what was sampled."""
    first = row.mask.index(1)
    return tuple(row.ids[:first]), tuple(row.ids[first:]), tuple(row.logprobs[first:])


def test_the_model_learns(trained):
    before, after = trained.training.held_out[0], trained.training.held_out[-1]
    assert after["pass@1"] > 2 * before["pass@1"]
    assert after["interval"][0] > before["interval"][1]
    rewards = [step["reward"] for step in trained.training.steps]
    assert statistics.fmean(rewards[-5:]) > statistics.fmean(rewards[:5]) + 0.1


def test_both_faults_happened(trained):
    assert trained.outages[0].done()
    assert trained.outages[0].exception() is None
    assert trained.server.cut > 0
    assert trained.training.steps[-1]["masked"] > 0


def test_every_trained_group_is_complete(trained):
    assert len(trained.groups) == trained.plan.steps * trained.plan.groups
    for group in trained.groups:
        assert [rollout.sample for rollout in group.rollouts] == list(range(SAMPLES))
        assert len({rollout.reward for rollout in group.scored}) > 1
    keys = [(row.task, row.sample) for row in rows_of(trained)]
    assert len(keys) == len(set(keys))


def test_a_failed_rollout_has_no_reward_and_an_empty_mask(trained):
    failed = {rollout.key: rollout.failure.kind for group in trained.groups for rollout in group.failed}
    assert "verifier_timeout" in failed.values()
    scored = {rollout.key for group in trained.groups for rollout in group.scored}
    rows = {(row.task, row.sample): row for row in rows_of(trained)}
    assert scored <= rows.keys() <= scored | failed.keys()
    for key in failed.keys() & rows.keys():
        assert (rows[key].reward, rows[key].advantage, sum(rows[key].mask)) == (None, 0.0, 0)


def test_no_reward_is_made_up(trained):
    """Rewards are computed again from the tokens that were trained, advantages from the rewards of scored rollouts."""
    answers = {group.task.id: group.task.answer for group in trained.groups}
    scored = defaultdict(list)
    for row in rows_of(trained):
        if row.reward is not None:
            assert row.reward == reward(trained.tokenizer.decode(split_row(row)[1]), answers[row.task])
            scored[row.task].append(row)
    for rows in scored.values():
        rewards = [row.reward for row in rows]
        mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
        assert [row.advantage for row in rows] == pytest.approx([(each - mean) / (spread + 1e-4) for each in rewards])


def test_every_trained_token_was_sampled_by_the_server(trained):
    sampled = {(tuple(a.prompt), tuple(a.ids), tuple(a.logprobs), a.version) for a in trained.server.engine.record}
    for row in rows_of(trained):
        if row.reward is not None:
            (version,) = set(row.versions) - {None}
            assert (*split_row(row), version) in sampled


def list_ages(rows):
    """How many versions each trained token is behind the weights that it trains, by step; a row names both."""
    return {
        step: [step - 1 - int(version) for row in some for version in row.versions if version is not None]
        for step, some in rows.items()
    }


def test_every_trained_token_has_the_version_it_was_sampled_with(trained):
    for row in rows_of(trained):
        assert [version is not None for version in row.versions] == [bool(each) for each in row.mask]
    for step in trained.training.steps:
        assert sum(step["versions"].values()) == step["trained_tokens"]
        assert step["stale"] == pytest.approx(
            1 - step["versions"].get(str(step["step"] - 1), 0) / step["trained_tokens"]
        )
    for step, ages in list_ages(trained.rows).items():
        assert set(ages) <= set(range(21)), step


def test_turns_of_two_versions_are_told_apart():
    turns = [
        Turn([5, 6], [7, 8], [-0.5, -0.25], model_version="3"),
        Turn([5, 6, 7, 8, 9], [1], [-0.125], model_version="4"),
        Turn([2], [3], [-1.0], model_version="5"),
    ]
    task = Task("t", "?")
    rollouts = [
        Rollout(task=task, sample=sample, seed=0, turns=turns, score=Score(float(sample))) for sample in range(2)
    ]
    first, forked = make_rows(Group(task, rollouts))[:2]
    assert first.versions == [None, None, "3", "3", None, "4"]
    assert forked.versions == [None, "5"]
    assert keep_version(first, "4").mask == [0, 0, 0, 0, 0, 1]


SLOW_STEPS = 7


def train_slowly(monkeypatch, folder, bound):
    """Train so slowly that the collector fills its window at every step; return the rows of each step, and counts.

    Half of what waits is one version old when the next step takes its groups, and the other half two when it is taken.
    """
    log = SimpleNamespace(rows=defaultdict(list), server=None)
    whole = Trainer.step

    def wait_until_the_window_is_full(trainer, rows):
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < 0.5:  # no answer was begun for so long
            if (now := len(log.server.engine.record)) != seen:
                seen, since = now, time.monotonic()
            time.sleep(0.02)
        return whole(trainer, rows)

    def start(server):
        log.server, server.engine.record = server, []

    monkeypatch.setattr(Trainer, "step", wait_until_the_window_is_full)
    torch.manual_seed(7)
    environment = f"{EXAMPLE / 'digits.py'}:Digits"
    plan = Plan(
        environment, steps=SLOW_STEPS, samples=SAMPLES, max_staleness=bound, evaluate_every=99, held_out_samples=1
    )
    model, tokenizer = load()
    after = lambda step, groups, rows: log.rows[step].extend(rows)  # noqa: E731
    training = Training(plan, model, tokenizer, folder, "tiny", start, after_step=after)
    asyncio.run(training.run())
    assert log.rows.keys() == set(range(1, SLOW_STEPS + 1))
    return list_ages(log.rows), training.steps[-1]


def test_groups_that_are_older_than_the_bound_are_dropped_and_never_trained(monkeypatch, tmp_path):
    ages, counts = train_slowly(monkeypatch, tmp_path, bound=1)
    assert max(age for each in ages.values() for age in each) == 1
    assert counts["dropped_stale"] > 0


def test_without_the_bound_they_would_be_trained(monkeypatch, tmp_path):
    """The same training as above: so its assertion can fail."""
    ages, counts = train_slowly(monkeypatch, tmp_path, bound=SLOW_STEPS)
    assert max(age for each in ages.values() for age in each) > 1
    assert counts["dropped_stale"] == 0


def test_the_trainer_computes_the_logprobs_of_the_server(trained):
    for step in trained.training.steps:
        assert step["logprob"] < 0
        assert step["logprob_gap"] < 1e-5
        assert step["logprob_gap_max"] < 1e-3
        assert step["logprob_gap_tokens"] == step["trained_tokens"]


def sample_answers(engine, seeds, prompt=(5, 9, 3, 0, 1), most=8):
    """Let the engine sample together."""
    answers, left = [], threading.Semaphore(0)
    for seed in seeds:
        answers.append(Answer(list(prompt), most, 1.0, seed, left.release))
        engine.submit(answers[-1])
    assert all(left.acquire(timeout=60) for _ in answers)
    return answers


@pytest.fixture
def engine():
    torch.manual_seed(1)
    model, tokenizer = load()
    engine = Engine(model, tokenizer.end, slots=16, length=32)
    engine.start()
    yield engine
    engine.stop()


def test_an_answer_depends_on_its_seed_and_not_on_its_company(engine):
    together = sample_answers(engine, range(24))  # more than there are slots
    alone = sample_answers(engine, [5])[0]
    assert alone.ids == together[5].ids
    assert alone.logprobs == pytest.approx(together[5].logprobs, abs=1e-5)
    assert len({tuple(answer.ids) for answer in together}) > 12


def test_the_gap_of_logprobs_shows_a_small_difference_of_weights(engine):
    answers = sample_answers(engine, range(8))
    rows = [
        Row(
            "t",
            i,
            a.prompt + a.ids,
            mask=[0] * 5 + [1] * len(a.ids),
            logprobs=[0.0] * 5 + a.logprobs,
            reward=1.0,
            advantage=0.0,
            versions=[None] * 5 + ["0"] * len(a.ids),
        )
        for i, a in enumerate(answers)
    ]
    assert float(Trainer(engine.model, Plan()).measure_gaps(rows).mean()) < 1e-5
    engine.model.blocks[0].q.weight.mul_(1.1)
    assert float(Trainer(engine.model, Plan()).measure_gaps(rows).mean()) > 1e-4
    rows[0].ids[0] += 1  # another prompt
    assert float(Trainer(engine.model, Plan()).measure_gaps(rows[:1]).mean()) > 1e-4


def test_the_server_refuses_what_it_cannot_do():
    asyncio.run(check_refusals())


async def check_refusals():
    model, tokenizer = load()
    async with Server(model, tokenizer, "tiny", slots=4, length=16) as server, aiohttp.ClientSession() as session:

        async def ask(**changes):
            body = {"messages": [{"role": "user", "content": "1"}], "temperature": 1.0, "max_tokens": 4} | changes
            async with session.post(f"{server.url}/chat/completions", json=body) as response:
                return response.status, await response.json()

        status, answer = await ask(top_k=1)
        assert (status, answer["choices"][0]["logprobs"]["content"][0]["logprob"]) == (200, 0.0)
        assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["token_ids"])
        for changes in ({"top_p": 0.9}, {"top_k": 5}, {"stop": ["1"]}):
            assert (await ask(**changes))[0] == 400
        status, answer = await ask(messages=[{"role": "user", "content": "1" * 20}])
        assert status == 400
        assert "maximum context length" in answer["error"]["message"]
