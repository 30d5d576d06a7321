"""Run a resources server as a child process: ready once it answers, ended with the process that started it.

`framework_config` is a framework's configuration as in NeMo Evaluator: the package that holds the harness, and the
model that judges.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from rollbook.core import JSON, Limits, Settings, encode
from rollbook.engine import is_importable
from rollbook.environments import Environment, arguments_of, load_instance
from rollbook.errors import ChildFailed, UsageError
from rollbook.gym.harness import temporary_folder
from rollbook.gym.server.serve import HARNESS_PREFIX, SERVE_OPTIONS_FD, ServeOptions, ServerInfo
from rollbook.processes import Child, module_argv, start_ready


def read_harness_package(config: Mapping[str, JSON]) -> str:
    """Return the package of the harness: `framework.pkg_name`."""
    package = _get_nested(config, "framework", "pkg_name")
    if not isinstance(package, str) or not package:
        raise UsageError("framework_config has no framework.pkg_name: the package that holds the harness")
    return package


def read_harness_arguments(config: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the harness arguments besides the evaluation: all of `params.extra`, the judge as `judge_config`.

    A judge's key is passed only in the environment, by its name.
    """
    extra = _get_nested(config, "defaults", "config", "params", "extra")
    if extra is not None and not isinstance(extra, Mapping):
        raise UsageError(f"framework_config: defaults.config.params.extra is not a mapping but {extra!r:.80}")
    arguments = {str(name): value for name, value in (extra or {}).items() if name != "judge"}
    return {**arguments, **_read_judge(_get_nested(extra, "judge"))}


def _read_judge(judge: JSON) -> dict[str, JSON]:
    if not isinstance(judge, Mapping) or not judge.get("url"):
        return {}
    judge_config = {
        "backend": judge.get("backend") or "openai",
        "url": judge["url"],
        "model": judge.get("model_id") or judge.get("model"),
        "api_key_name": judge.get("api_key_name") or judge.get("api_key"),
    }
    return {"judge_config": {name: value for name, value in judge_config.items() if value is not None}}


def _get_nested(value: JSON, *names: str) -> JSON:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


T = TypeVar("T")

START_TIMEOUT_S = 120.0
GRACE_S = 10.0
POLL_INTERVAL_S = 0.05


class ResourceServerProcess:
    """Serve an environment (or, with `framework_config`, a harness package) while the context is open.

    The child binds its own port and reports it. `url` is its address, `data` the file of its rows; its log goes to the
    file `log`, if given. Use plain `with` outside event loops, `async with` inside.
    """

    def __init__(
        self,
        env: str | Environment | None = None,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        eval_type: str = "",
        framework_config: Mapping[str, JSON] | None = None,
        data_dir: str | Path | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        settings: Settings = Settings(),  # noqa: B008 - frozen
        judge_name: str = "",
        log: Path | None = None,
        within_s: float = START_TIMEOUT_S,
        grace_s: float = GRACE_S,
    ) -> None:
        if (env is None) == (framework_config is None):
            raise UsageError("ResourceServerProcess: give either env or framework_config")
        if port is not None and not 0 <= port < 1 << 16:
            raise UsageError(f"ResourceServerProcess: port={port}: give one from 0 to 65535")
        spec = (
            make_environment_spec(env)
            if env is not None
            else f"{HARNESS_PREFIX}{read_harness_package(framework_config or {})}"
        )
        self._options = ServeOptions(
            env=spec,
            eval_type=eval_type,
            harness_args=read_harness_arguments(framework_config or {}),
            host=host,
            port=port or 0,
            limits=limits,
            settings=settings,
            judge_name=judge_name,
        )
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._log, self._start_timeout_s, self._grace_s = log, within_s, grace_s
        self._folder = ExitStack()
        self._child: Child | None = None
        self._info: ServerInfo | None = None

    @property
    def url(self) -> str:
        """The server's address."""
        return self._running_info.url

    @property
    def data(self) -> Path:
        """The rows as JSON Lines, in `data_dir` if given, else in a folder that is deleted with the server."""
        return Path(self._running_info.data or "")

    @property
    def _running_info(self) -> ServerInfo:
        if self._info is None:
            raise UsageError("the server is not running: use it in `with` or `async with`")
        return self._info

    def __enter__(self) -> Self:
        self._run_sync(self.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run_sync(self.stop())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and wait until it answers; ChildFailed, with the end of its log, if it dies or is late."""
        if self._child is not None:
            raise UsageError("the server is running already")
        try:
            self._info = await self._start_child(self._rows_folder())
            await self._wait_until_healthy(self._info.url)
        except BaseException:
            await self.stop()
            raise

    def _rows_folder(self) -> Path:
        if self._data_dir is not None:
            return self._data_dir
        return self._folder.enter_context(temporary_folder())

    async def _start_child(self, folder: Path) -> ServerInfo:
        """Pass the options in an unnamed file, because everyone can see the child's arguments."""
        with tempfile.TemporaryFile() as file:
            file.write(encode(msgspec.structs.replace(self._options, data_dir=str(folder.resolve()))))
            file.seek(0)
            self._child, info = await start_ready(
                module_argv("rollbook.gym"),
                timeout_s=self._start_timeout_s,
                name="the resources server",
                env={**os.environ, SERVE_OPTIONS_FD: str(file.fileno())},
                pass_fds=[file.fileno()],
                log=self._log,
            )
        return msgspec.convert(info, ServerInfo)

    async def _wait_until_healthy(self, url: str) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s), aiohttp.ClientSession() as http:
                while True:
                    if await self._is_healthy(http, url):
                        return
                    await asyncio.sleep(POLL_INTERVAL_S)
        except TimeoutError:
            message = f"the resources server did not answer within {self._start_timeout_s:g} s"
            raise ChildFailed(message, self.log_tail()) from None

    async def _is_healthy(self, http: aiohttp.ClientSession, url: str) -> bool:
        assert self._child
        if self._child.returncode is not None:
            raise ChildFailed(f"the resources server ended (exit {self._child.returncode})", self.log_tail())
        try:
            async with http.get(url) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def stop(self) -> None:
        """Stop the server and everything it started: ask first, kill after `grace_s`."""
        child, self._child, self._info = self._child, None, None
        try:
            if child is not None:
                await child.terminate(self._grace_s)
        finally:
            self._folder.close()

    def log_tail(self, lines: int = 20) -> str:
        """Return the end of the log."""
        return self._child.log_tail(lines) if self._child else ""

    def _run_sync(self, work: Coroutine[None, None, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        work.close()
        raise UsageError("an event loop is running here: use `async with ResourceServerProcess(...)`")


def make_environment_spec(env: str | Environment) -> str:
    """Return a spec from which another process makes the same environment; refuse one that it cannot import."""
    if isinstance(env, str):
        return env
    loaded = load_instance(env)
    if not is_importable(loaded):
        raise UsageError(f"{loaded.cls.__name__} cannot be imported by another process: put it in a file")
    where = f"{loaded.path or loaded.cls.__module__}:{loaded.cls.__qualname__}"
    query = "&".join(f"{key}={quote(encode(value))}" for key, value in arguments_of(env).items())
    return f"{where}?{query}" if query else where
