"""A model that is being trained, served as vLLM serves one: chat completions with the ids and logprobs of its tokens.

Only while nobody trains: TRL waits for its rollouts, and so the weights hold still.
"""

import asyncio
import threading
from typing import Any

import torch
from aiohttp import web


class Served:
    """`with Served(model, tokenizer) as url:` serves on loopback, one answer at a time."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> str:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return f"http://127.0.0.1:{self._run(self._serve())}/v1"

    def __exit__(self, *_: object) -> None:
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _serve(self) -> int:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "object": "model", "owned_by": "vllm"}]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)
        ids, logprobs = self._sample(prompt, body["seed"], body["temperature"], body["max_tokens"])
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop" if ids[-1] == self._tokenizer.eos_token_id else "length",
            "logprobs": {"content": [{"token": "", "logprob": logprob} for logprob in logprobs]},
            "token_ids": ids,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        told = {"id": "x", "model": "tiny", "choices": [choice], "usage": usage, "prompt_token_ids": prompt}
        return web.json_response(told)

    @torch.no_grad()
    def _sample(self, prompt: list[int], seed: int, temperature: float, most: int) -> tuple[list[int], list[float]]:
        """Token by token, drawn by the seed of the rollout."""
        dice = torch.Generator().manual_seed(seed)
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < most and (not ids or ids[-1] != self._tokenizer.eos_token_id):
            logits = self._model(torch.tensor([prompt + ids])).logits[0, -1].float() / temperature
            spread = logits.log_softmax(-1)
            ids.append(int(torch.multinomial(spread.exp(), 1, generator=dice)))
            logprobs.append(float(spread[ids[-1]]))
        return ids, logprobs
