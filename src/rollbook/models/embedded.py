"""The embedded model: SmolLM2-135M-Instruct in a llama.cpp server that is a child of this process.

Every turn carries exact tokens. The prompt is rendered and tokenised by the server itself, as its own chat endpoint
does, and then *sent as ids*; the sampled ids come back one by one, the end-of-sequence token included when the model
ended its answer. The logprobs are the model's own, before temperature, top_p and top_k: at temperature 1 and top_p 1
they are also those of the distribution that was sampled from. The same seed gives the same answer only while the
server computes in the same batches; under load the last bits differ, and sometimes the answer.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import aiohttp

from rollbook.core.json import JSON
from rollbook.core.manifest import ModelSpec, Sampling, Settings
from rollbook.core.message import Message
from rollbook.core.turn import Turn
from rollbook.errors import ChildFailed, EndpointDown, RolloutFailed, UsageError
from rollbook.models.exact import exact_logprobs
from rollbook.models.llama import Llama
from rollbook.models.model import Completion
from rollbook.models.protocol import check_extra, without_reasoning
from rollbook.models.refusal import WHERE, bad_completion
from rollbook.models.replica import open_session
from rollbook.models.target import EMBEDDED_SLOTS as SLOTS
from rollbook.models.weights import ensure
from rollbook.processes.child import Child, module_argv
from rollbook.processes.ready import start_ready

CONTEXT = 2048
START_S = 120.0
RESTARTS = 3
_FINISH = {"limit": "length", "eos": "stop", "word": "stop"}


class EmbeddedModel:
    """Starts the server on `open` and ends it on `close`; one that crashes is started again, three times at most.

    With `Settings.urls` it joins a server that another process of ours has started (its `url`) and starts none. `log`
    is where the server's own words go. It takes text only, and tools only as text: its template has no place for them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        settings: Settings,
        *,
        say: Callable[[str], None] | None = None,
        log: Path | None = None,
        threads: int = 0,
    ) -> None:
        self.spec = spec
        self.version: str | None = None
        self._settings = settings
        self._say = say or _say
        self._log = log
        self._threads = threads
        self._child: Child | None = None
        self._llama: Llama | None = None
        self._session: aiohttp.ClientSession | None = None
        self._starting = asyncio.Lock()
        self._starts = 0
        self._slots = asyncio.Semaphore(SLOTS)

    @property
    def url(self) -> str:
        """Where the server listens."""
        return self._server.url

    async def open(self) -> None:
        """Fetch the weights if need be, start the server and wait until it is ready."""
        self._session = open_session(self._settings, connections=SLOTS)
        try:
            if self._settings.urls:
                self._llama = Llama(self._settings.urls[0], self._session, self._settings.call_s)
            else:
                await self._start(self._session)
        except ChildFailed as error:
            await self.close()
            raise UsageError(f"the embedded model did not start ({error}); give -m URL to use another") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the server and every connection to it."""
        if self._session:
            await self._session.close()
        if self._child:
            await self._child.kill_tree()
        self._session = self._child = self._llama = None

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        seed: int,
        rollout: str,
        tools: Sequence[JSON] = (),
    ) -> Completion:
        """Answer once."""
        _check(messages, tools)
        check_extra(sampling)
        async with self._slots:
            llama = await self._living()
            started, version = perf_counter(), self.version
            prompt = await llama.prompt(without_reasoning(messages), rollout)
            prompt_ids = prompt.ids
            answer = await llama.sample(prompt_ids, sampling, seed)
            llama.remember(rollout, prompt, answer)
            logprobs = exact_logprobs(
                prompt_ids,
                answer.tokens,
                await llama.logprobs(prompt_ids, answer),
                prompt_tokens=answer.tokens_evaluated,
                completion_tokens=answer.tokens_predicted,
            )
        if answer.stop_type not in _FINISH:
            raise bad_completion(f"the answer was not finished: stop_type is {answer.stop_type!r}")
        counts, finish, seconds = (len(prompt_ids), len(logprobs)), _FINISH[answer.stop_type], perf_counter() - started
        turn = Turn(prompt_ids, answer.tokens, logprobs, *counts, finish, seconds, version)
        return Completion(Message("assistant", answer.content), turn)

    @property
    def _server(self) -> Llama:
        if self._llama is None:
            raise RuntimeError("the model is not open")
        return self._llama

    async def _living(self) -> Llama:
        """The server, started again if it has crashed."""
        llama, child = self._server, self._child
        if child is None or child.returncode is None:
            return llama
        async with self._starting:
            if self._child is child and self._session:
                if self._starts > RESTARTS:
                    raise EndpointDown(f"the embedded model crashed {self._starts} times: {child.last_words()}")
                try:
                    await self._start(self._session)
                except ChildFailed as error:
                    raise RolloutFailed("model_unavailable", WHERE, str(error)) from error
        return self._server

    async def _start(self, session: aiohttp.ClientSession) -> None:
        self._starts += 1
        if importlib.util.find_spec("xllamacpp") is None:
            raise UsageError("the embedded model needs xllamacpp: `pip install 'rollbook[local]'`, or give -m URL")
        weights = await asyncio.to_thread(ensure, self._settings.offline, self._say)
        argv = module_argv("rollbook.models.server", "--weights", str(weights), "--threads", str(self._threads))
        argv += ["--slots", str(SLOTS), "--context", str(CONTEXT)]
        self._child, said = await start_ready(argv, within_s=START_S, what="the embedded model's server", log=self._log)
        self._llama = Llama(said["url"], session, self._settings.call_s)


def _check(messages: Sequence[Message], tools: Sequence[JSON]) -> None:
    if tools:
        raise RolloutFailed(
            "model_rejected", WHERE, "the embedded model parses no tool calls; use --tool-format schema"
        )
    for message in messages:
        if isinstance(message.content, list) and any(part.get("type") != "text" for part in message.content):
            raise RolloutFailed("model_rejected", WHERE, "the embedded model reads text only; give -m URL")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
