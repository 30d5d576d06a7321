"""Exact tokens of a real vLLM: echoed on every turn, forked with reasons, continued, and the logprobs it recomputes."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from rollbook import run, run_async
from rollbook.book import Book, rollouts
from rollbook.core import Message, ModelSpec, Sampling, Settings
from rollbook.models import AnsweredCall, ChatModel
from rollbook.tokens import ANSWER_DIFFERS, ANSWER_LEFT_OUT, merge

pytestmark = pytest.mark.slow

TALKING = Path(__file__).with_name("talking.py")
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
NOISE = Sampling(max_tokens=16, extra=NO_THINKING)
TOLERANCE = 1e-3
OUTAGE_S = 20.0


def played(vllm, out, environment, *, samples=4, sampling=None, **more):
    """A run of 32 rollouts side by side, and its rollouts with their tokens."""
    done = run(
        f"{TALKING}:{environment}",
        vllm.url,
        samples=samples,
        out=out,
        concurrency=32,
        outage_s=OUTAGE_S,
        sampling=sampling or Sampling(max_tokens=96),
        **more,
    )
    return done.report, list(rollouts(Book(out), tokens=True))


@pytest.fixture(scope="module")
def sums(vllm, tmp_path_factory):
    return played(vllm, tmp_path_factory.mktemp("sums") / "run", "Sums")


@pytest.fixture(scope="module")
def continued(vllm, tmp_path_factory):
    return played(vllm, tmp_path_factory.mktemp("continued") / "run", "Sums", continue_tokens=True)


@pytest.fixture(scope="module")
def noise(vllm, tmp_path_factory):
    out = tmp_path_factory.mktemp("noise") / "run"
    return played(vllm, out, "Noise", sampling=NOISE, continue_tokens=True)


def test_32_rollouts_at_once_have_exact_tokens_on_every_turn_while_the_server_parses(sums):
    report, found = sums
    assert (report.scored, len(found)) == (32, 32)
    for rollout in found:
        assert all(len(t.ids) == len(t.logprobs) > 0 and t.prompt_ids for t in rollout.turns)
    called = [m for rollout in found for m in rollout.messages if m.tool_calls]
    assert called
    assert all(call.function.name == "add" for message in called for call in message.tool_calls)
    assert any(m.reasoning for rollout in found for m in rollout.messages)
    assert any(m.role == "tool" and m.text.isdigit() for rollout in found for m in rollout.messages)


def test_a_prompt_is_what_the_server_itself_renders(vllm, sums):
    rollout = sums[1][0]
    messages = [{"role": m.role, "content": m.text} for m in rollout.task.messages]
    tools = json.loads((Path(sums[0].path) / "run.json").read_text())["environments"]["Sums"]["tools"]
    rendered = vllm.ask("/tokenize", {"model": "tiny", "messages": messages, "tools": tools})["tokens"]
    assert rollout.turns[0].prompt_ids == rendered


def test_where_the_template_leaves_reasoning_out_it_forks_and_says_so(sums):
    report, found = sums
    told = report.continuity["Sums"]
    assert told.turns == sum(len(rollout.turns) - 1 for rollout in found) > 0
    assert told.forks == sum(len(merge(rollout.turns)) - 1 for rollout in found) > 0
    assert set(told.reasons) <= {ANSWER_LEFT_OUT, ANSWER_DIFFERS}
    assert sum(told.reasons.values()) == told.forks


def test_continued_in_their_tokens_all_rollouts_are_one_sequence_each(continued):
    report, found = continued
    told = report.continuity["Sums"]
    assert (told.forks, told.broken, told.break_rate) == (0, 0, 0.0)
    assert told.turns > 0
    for rollout in found:
        (sequence,) = merge(rollout.turns)
        assert sequence.trained == sum(len(turn.ids) for turn in rollout.turns)
    assert any(m.tool_calls for rollout in found for m in rollout.messages)


def test_noise_that_is_no_text_is_continued_as_it_was_sampled_cut_or_not(noise):
    report, found = noise
    assert report.continuity["Noise"].forks == 0
    endings = {turn.finish_reason for rollout in found for turn in rollout.turns}
    assert endings == {"length", "stop"}
    assert any("\ufffd" in m.text for rollout in found for m in rollout.messages)
    assert all(len(merge(rollout.turns)) == 1 and len(rollout.turns) == 4 for rollout in found)


@pytest.mark.parametrize("which", ["sums", "continued", "noise"])
def test_recorded_logprobs_are_those_that_the_server_computes_for_the_whole_sequence(vllm, which, request):
    worst = 0.0
    for rollout in request.getfixturevalue(which)[1][:12]:
        for sequence in merge(rollout.turns):
            worst = max(worst, recomputed(vllm, sequence))
    assert worst < TOLERANCE


def recomputed(vllm, sequence):
    """The largest difference between the logprobs of a sequence and those of its ids as a prompt."""
    ids = sequence.prompt_ids + sequence.response_ids
    body = {"model": "tiny", "prompt": ids, "max_tokens": 1, "temperature": 1.0, "top_k": -1, "prompt_logprobs": 0}
    scored = vllm.ask("/v1/completions", body)["choices"][0]["prompt_logprobs"]
    first = len(sequence.prompt_ids)
    return max(
        abs(scored[first + i][str(token)]["logprob"] - sequence.logprobs[i])
        for i, token in enumerate(sequence.response_ids)
        if sequence.mask[i]
    )


def test_no_default_of_the_weights_decides_what_is_sampled(noise):
    """generation_config.json says top_k 20: with it nothing would be less likely than about 1 in 20."""
    assert min(p for rollout in noise[1] for turn in rollout.turns for p in turn.logprobs) < -5


@asynccontextmanager
async def opened(vllm, **changes):
    said = []
    settings = Settings(urls=[changes.pop("url", vllm.url)], call_s=120.0, outage_s=OUTAGE_S)
    model = ChatModel(ModelSpec(""), settings, say=said.append)
    await model.open()
    try:
        yield model, said
    finally:
        await model.close()


def talk(vllm, question, answer_to, *, sampling=NOISE, by_text=False, seed=3):
    """Two turns, the second continued; `answer_to` makes the messages of the second."""

    async def main():
        async with opened(vllm) as (model, said):
            if by_text:
                model._continuer._versions = dict.fromkeys(model._router.replicas, (0, 11))
            asked = [Message("user", question)]
            first = await model.complete(asked, sampling, seed=seed, rollout="t#0")
            messages = answer_to(asked, first.message)
            then = await model.complete_from(AnsweredCall(asked, first), messages, sampling, seed=seed, rollout="t#0")
            return [first.turn, then.turn], said

    return asyncio.run(main())


def replied(text):
    return lambda asked, answer: [*asked, answer, Message("user", text)]


@pytest.mark.parametrize("text", ["more", "<|im_end|>\n<|im_start|>assistant\n", "\u2603 </think>", "\n \n"])
@pytest.mark.parametrize("limit", [3, 64])
def test_whatever_a_user_writes_a_turn_goes_on(vllm, text, limit):
    turns, said = talk(vllm, text, replied(text), sampling=Sampling(max_tokens=limit, extra=NO_THINKING))
    assert said == []
    assert len(merge(turns)) == 1


def test_thinking_that_the_template_strips_stays_in_the_tokens(vllm):
    turns, said = talk(vllm, "noise", replied("more"), sampling=Sampling(max_tokens=64))
    assert said == []
    assert len(merge(turns)) == 1


def test_an_edited_history_is_asked_as_it_is(vllm):
    def edited(asked, answer):
        return [*asked, Message("assistant", "something else"), Message("user", "more")]

    turns, said = talk(vllm, "noise", edited)
    assert len(merge(turns)) == 2
    assert "does not continue from the unchanged last answer" in said[0]


def test_ids_go_in_as_a_text_completion_too(vllm):
    turns, said = talk(vllm, "noise", replied("more"), by_text=True)
    assert said == []
    assert len(merge(turns)) == 1


def test_the_mode_of_the_logprobs_is_found_out_by_asking(vllm):
    async def main():
        async with opened(vllm) as (model, said):
            await model.complete([Message("user", "noise")], Sampling(0.7, max_tokens=2), seed=1, rollout="t#0")
            return await model.find_logprobs_mode(), said

    assert asyncio.run(main()) == ("processed", [])


def test_processed_logprobs_are_those_of_what_was_sampled_from(vllm):
    async def main():
        async with opened(vllm) as (model, _):
            sampling = Sampling(2.0, max_tokens=1, extra={"top_k": 2, **NO_THINKING})
            asked = [Message("user", "noise")]
            return [(await model.complete(asked, sampling, seed=i, rollout="t#0")).turn for i in range(40)]

    found = {turn.ids[0]: turn.logprobs[0] for turn in asyncio.run(main())}
    assert len(found) == 2
    assert sum(2.718281828**p for p in found.values()) == pytest.approx(1.0, abs=1e-3)


@asynccontextmanager
async def spoiling(vllm, times):
    """Passes everything on to the server, and makes the first logprob of the first answers null."""
    left = [times]

    async def pass_on(request):
        body = await request.read()
        async with session.request(request.method, vllm.root + request.path, data=body, headers=kept) as answer:
            told = await answer.json()
        if request.path.endswith("/chat/completions") and left[0] > 0:
            left[0] -= 1
            told["choices"][0]["logprobs"]["content"][0]["logprob"] = None
        return web.json_response(told, status=answer.status)

    kept = {"Content-Type": "application/json"}
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{any:.*}", pass_on)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        finally:
            await runner.cleanup()


def test_a_null_logprob_is_a_failure_that_is_tried_again_and_never_passed_on(vllm, tmp_path):
    async def main():
        async with spoiling(vllm, times=2) as url:
            environment = f"{TALKING}:Noise?tasks=1&turns=2"
            return await run_async(
                environment, url, out=tmp_path / "run", sampling=NOISE, continue_tokens=True, probe=False
            )

    assert asyncio.run(main()).report.scored == 1
    lines = [
        json.loads(x) for p in (tmp_path / "run/journals").glob("*.failures.jsonl") for x in p.read_text().splitlines()
    ]
    assert {line["failure"]["kind"] for line in lines} == {"nonfinite_logprobs"}
    (rollout,) = rollouts(Book(tmp_path / "run"), tokens=True)
    assert len(merge(rollout.turns)) == 1


def test_the_command_line_continues_reports_and_looks_at_the_endpoint(vllm, tmp_path):
    out = str(tmp_path / "run")
    said = rollbook("run", f"{TALKING}:Sums", "-m", vllm.url, "--continue-tokens", "--max-tokens", "96", "-o", out)
    assert "8/8 scored" in said
    assert json.loads((tmp_path / "run/run.json").read_text())["continue_tokens"] is True
    told = json.loads(rollbook("report", out, "--json"))["continuity"]["Sums"]
    assert (told["forks"], told["break_rate"]) == (0, 0.0)
    assert "break rate 0.000" in rollbook("report", out)
    found = {row["what"].strip(): row["works"] for row in json.loads(rollbook("doctor", "-m", vllm.url, "--json"))}
    assert found == {"endpoint": True, "token ids": True, "logprobs": True, "--continue-tokens": True}


def rollbook(*words):
    command = [sys.executable, "-m", "rollbook", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
