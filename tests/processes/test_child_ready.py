import asyncio
import sys
import time

import pytest

from rollbook.errors import ChildFailed
from rollbook.processes.child import start_ready
from support.alive import alive, eventually, open_fds

PUBLISH = "from rollbook.processes.child import publish_ready; import os, time; "
PUBLISH += "publish_ready({'port': 1234, 'pid': os.getpid()}); "


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_what_the_child_publishes_arrives() -> None:
    async def main() -> None:
        child, said = await start_ready(command(PUBLISH + "time.sleep(60)"), timeout_s=20)
        assert said == {"port": 1234, "pid": child.pid}
        await child.kill_tree()

    before = open_fds()
    asyncio.run(main())
    assert open_fds() <= before


def test_a_child_that_publishes_and_ends_was_still_ready() -> None:
    async def main() -> None:
        child, said = await start_ready(command(PUBLISH), timeout_s=20)
        assert said["port"] == 1234
        assert await child.wait(10) == 0

    asyncio.run(main())


def test_a_child_that_dies_first_fails_at_once_with_the_end_of_its_log() -> None:
    started = time.monotonic()
    with pytest.raises(ChildFailed, match=r"the host ended \(exit 1\).*ValueError: no such dataset") as caught:
        asyncio.run(start_ready(command("raise ValueError('no such dataset')"), timeout_s=60, name="the host"))
    assert "Traceback" in caught.value.tail
    assert time.monotonic() - started < 20


def test_a_child_that_takes_too_long_is_killed() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(ChildFailed, match="not ready within 1 s") as caught:
        asyncio.run(start_ready(command(code), timeout_s=1.0))
    assert eventually(lambda: not alive(int(caught.value.tail)))


def test_a_child_that_only_closes_its_pipe_is_waited_for_until_it_ends() -> None:
    code = "import os, time; os.close(int(os.environ['ROLLBOOK_READY_FD'])); time.sleep(0.2); raise SystemExit(5)"
    with pytest.raises(ChildFailed, match="exit 5"):
        asyncio.run(start_ready(command(code), timeout_s=30))


def test_what_is_not_json_is_refused() -> None:
    code = "import os; os.write(int(os.environ['ROLLBOOK_READY_FD']), b'ready!\\n')"
    with pytest.raises(ChildFailed, match="invalid JSON"):
        asyncio.run(start_ready(command(code), timeout_s=30))


def test_publishing_without_a_listener_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollbook.processes.child import READY_FD, publish_ready

    monkeypatch.delenv(READY_FD, raising=False)
    assert publish_ready({"port": 1}) is None
