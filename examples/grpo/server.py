"""A small model server that reports exact tokens: continuous batching, a KV cache, vLLM's answers on the wire.

`Engine` is a thread that decodes all sequences together, in a fixed number of slots; sequences join and leave between
bursts of tokens. `Server` is its HTTP side. The logprobs are those of the distribution that each token was drawn from,
and each request draws by its own seed. `update` changes the weights in place, when no sequence is in progress.
"""

import asyncio
import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from aiohttp import web
from model import Cache, Model
from torch import Tensor

BURST = 8
"""Tokens that all sequences advance before any of them may join or leave: the host looks at results once per burst."""
BUCKET = 128
"""Attention looks back at a multiple of so many positions; on a GPU each multiple is one captured graph."""
ONLY: dict[str, tuple[Any, ...]] = {
    "top_k": (-1, 1),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "n": (1,),
    **dict.fromkeys(("tools", "stop", "logit_bias", "response_format"), ()),
}
"""The values of parameters that are served. Any other is refused: ignored, it would make the logprobs wrong."""


class Tokenizer(Protocol):
    """What the server needs of a tokenizer."""

    end: int

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the prompt of a conversation."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens."""


@dataclass(eq=False)
class Answer:
    """One answer in progress. A temperature of 0 takes the likeliest token, of which the logprob is then 0."""

    prompt: list[int]
    most: int
    temperature: float
    seed: int
    answered: Callable[[], None] = lambda: None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: str = ""
    dropped: bool = False


class Engine(threading.Thread):
    """Decodes up to `slots` sequences at once, each of at most `length` tokens with its prompt."""

    def __init__(self, model: Model, end: int, slots: int, length: int) -> None:
        super().__init__(daemon=True, name="engine")
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.version, self.end, self.length = "0", end, length
        self.record: list[Answer] | None = None
        weights = self.model.embeddings.weight
        self._cache = Cache(model.shape, slots, length, weights)
        self._ids, self._positions = (torch.zeros(slots, dtype=torch.int64, device=weights.device) for _ in range(2))
        self._temperatures = torch.ones(slots, device=weights.device)
        self._uniform = torch.zeros(slots, length, device=weights.device)
        self._drawn = torch.zeros(BURST, slots, dtype=torch.int64, device=weights.device)
        self._logprobs = torch.zeros(BURST, slots, device=weights.device)
        self._slots: list[Answer | None] = [None] * slots
        self._waiting: deque[Answer] = deque()
        self._wake, self._lock, self._stopped = threading.Event(), threading.Lock(), False
        self._stream = torch.cuda.Stream() if weights.is_cuda else None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.error: BaseException | None = None
        self.tokens, self.busy_s = 0, 0.0

    def submit(self, sequence: Answer) -> None:
        """Let a sequence join; its `answered` is called in the engine's thread."""
        self._waiting.append(sequence)
        self._wake.set()

    def update(self, weights: Mapping[str, Tensor], version: str) -> None:
        """Change the weights in place. Waits for sequences in progress: none is sampled from two versions."""
        while self._waiting or any(self._slots):
            if self.error:
                raise RuntimeError("the engine failed") from self.error
            time.sleep(0.001)
        with self._lock, torch.no_grad():
            for name, old in self.model.state_dict().items():
                old.copy_(weights[name])
            if self._stream:
                torch.cuda.synchronize()
            self.version = version

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        self.join()

    @torch.no_grad()
    def run(self) -> None:
        """Decode until stopped."""
        try:
            with torch.cuda.stream(self._stream) if self._stream else threading.Lock():
                if self._stream:
                    self._capture()
                while not self._stopped:
                    with self._lock:
                        worked = self._advance()
                    if not worked:
                        self._wake.wait(0.1)
                        self._wake.clear()
        except BaseException as error:
            self.error = error
            raise

    def _advance(self) -> bool:
        started = time.perf_counter()
        self._slots = [None if sequence and sequence.dropped else sequence for sequence in self._slots]
        free = [slot for slot, sequence in enumerate(self._slots) if sequence is None]
        new = [self._waiting.popleft() for _ in range(min(len(free), len(self._waiting)))]
        new = [sequence for sequence in new if not sequence.dropped]
        if new:
            self._prefill(free[: len(new)], new)
        if any(self._slots):
            self._decode_burst()
        self.busy_s += time.perf_counter() - started
        return bool(new) or any(self._slots)

    def _prefill(self, slots: list[int], new: list[Answer]) -> None:
        device = self._ids.device
        ends = torch.tensor([len(s.prompt) for s in new], device=device)
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(s.prompt) for s in new], batch_first=True).to(device)
        where = torch.tensor(slots, device=device)
        for slot, sequence in zip(slots, new, strict=True):
            self._slots[slot], sequence.version = sequence, self.version
        uniform = [np.random.default_rng(s.seed).random(self.length, np.float32) for s in new]
        self._uniform[where] = torch.from_numpy(np.stack(uniform)).to(device)
        self._temperatures[where] = torch.tensor([s.temperature for s in new], device=device)
        hidden = self.model(ids, self._cache, where)[torch.arange(len(new), device=device), ends - 1]
        drawn, logprobs = sample(self.model.logits(hidden), self._uniform[where, 0], self._temperatures[where])
        self._ids[where], self._positions[where] = drawn, ends
        self._take([slots], [drawn.tolist()], [logprobs.tolist()])

    def _decode_burst(self) -> None:
        longest = max(len(s.prompt) + len(s.ids) for s in self._slots if s) + BURST
        length = min(self.length, -(-longest // BUCKET) * BUCKET)
        if self._graphs:
            self._graphs[length].replay()
        else:
            self._burst(length)
        self._take([range(len(self._slots))] * BURST, self._drawn.tolist(), self._logprobs.tolist())

    def _burst(self, length: int) -> None:
        """Sample some tokens of every slot, on the device alone: the state for the next burst is left in place."""
        for step in range(BURST):
            hidden = self.model.decode(self._ids, self._positions, self._cache, length)
            # The uniform number of a token is found by its position: any number is as good, if each is used once.
            uniform = self._uniform.gather(1, self._positions[:, None])[:, 0]
            drawn, logprobs = sample(self.model.logits(hidden), uniform, self._temperatures)
            self._ids.copy_(drawn)
            self._drawn[step].copy_(drawn)
            self._logprobs[step].copy_(logprobs)
            self._positions.add_(1).clamp_(max=self.length - 1)

    def _take(self, slots: Sequence[Sequence[int]], ids: list[list[int]], logprobs: list[list[float]]) -> None:
        """Append what was sampled to its sequences; release those that ended."""
        for row in zip(slots, ids, logprobs, strict=True):
            for slot, token, logprob in zip(*row, strict=True):
                sequence = self._slots[slot]
                if sequence is None:
                    continue
                sequence.ids.append(token)
                sequence.logprobs.append(logprob)
                self.tokens += 1
                if token == self.end or len(sequence.ids) >= sequence.most:
                    self._slots[slot] = None
                    if self.record is not None:
                        self.record.append(sequence)
                    sequence.answered()

    def _capture(self) -> None:
        """Capture one graph of a burst for each length: a replay is one launch instead of ten thousand."""
        for length in range(BUCKET, self.length + BUCKET, BUCKET):
            length = min(length, self.length)
            self._burst(length)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._burst(length)
            self._graphs[length] = graph


def sample(logits: Tensor, uniform: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token of each row by its uniform number; return it with its logprob in that distribution."""
    greedy = temperatures == 0
    spread = (logits / temperatures.masked_fill(greedy, 1.0)[:, None]).log_softmax(-1)
    total = spread.exp().cumsum(-1)
    drawn = (total <= uniform[:, None] * total[:, -1:]).sum(-1).clamp(max=logits.shape[-1] - 1)
    drawn = torch.where(greedy, logits.argmax(-1), drawn)
    return drawn, spread.gather(1, drawn[:, None])[:, 0].masked_fill(greedy, 0.0)


class Server:
    """`async with Server(...) as server:` serves `server.url`. `kill` and `start` are for tests of outages."""

    def __init__(self, model: Model, tokenizer: Tokenizer, name: str, *, slots: int = 512, length: int = 512) -> None:
        self.engine = Engine(model, tokenizer.end, slots, length)
        self._tokenizer, self._name, self._port = tokenizer, name, 0
        self.cut = 0  # calls that ended before their answer
        self._render = lru_cache(4096)(lambda messages: tokenizer.render(msgspec.json.decode(messages)))

    async def __aenter__(self) -> "Server":
        self.engine.start()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        await asyncio.to_thread(self.engine.stop)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def start(self) -> None:
        """Listen, on the same port as before."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        # A client that goes away cancels its handler, which drops its sequence.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True, backlog=1024).start()
        self._port = int(self._runner.addresses[0][1])

    async def kill(self) -> None:
        """Stop listening and drop every call in progress."""
        await self._runner.cleanup()

    async def update(self, weights: Mapping[str, Tensor], version: str) -> None:
        """Change the weights in place."""
        await asyncio.to_thread(self.engine.update, weights, version)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self._name, "object": "model", "owned_by": "vllm"}]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        if refused := [name for name, served in ONLY.items() if name in body and body[name] not in served]:
            return _refuse(f"{refused[0]}={body[refused[0]]} is not supported")
        prompt = self._render(msgspec.json.encode(body["messages"]))
        room = self.engine.length - len(prompt)
        if room < 1:
            return _refuse(f"This model's maximum context length is {self.engine.length} tokens.")
        greedy = body.get("top_k") == 1
        sequence = Answer(
            list(prompt), min(body["max_tokens"], room), 0.0 if greedy else body["temperature"], body.get("seed") or 0
        )
        await self._answer(sequence)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self._tokenizer.decode(sequence.ids)},
            "finish_reason": "stop" if sequence.ids[-1] == self.engine.end else "length",
            "logprobs": {"content": [{"token": "", "logprob": logprob} for logprob in sequence.logprobs]},
            "token_ids": sequence.ids,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sequence.ids)}
        told = {"id": "x", "model": self._name, "choices": [choice], "usage": usage, "prompt_token_ids": prompt}
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")

    async def _answer(self, sequence: Answer) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        sequence.answered = lambda: loop.call_soon_threadsafe(done.set)
        self.engine.submit(sequence)
        try:
            await done.wait()
        except asyncio.CancelledError:
            sequence.dropped = True
            self.cut += 1
            raise


def _refuse(message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "BadRequestError"}}, status=400)
