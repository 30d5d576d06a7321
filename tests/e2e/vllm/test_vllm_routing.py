"""Two real vLLM with prefix caches: the samples of a task go to the one that has its prompt."""

import pytest

from rollbook import run
from rollbook.core import Sampling
from support.tinyvllm import Server, tiny_model

pytestmark = pytest.mark.slow

PROMPTS = """
from rollbook import Environment, Task


class Long(Environment):
    def __init__(self, first=0):
        self.first = int(first)

    def tasks(self):
        for task in range(self.first, self.first + 4):
            words = " ".join(str((7919 * task + 104729 * word) % 9973) for word in range(400))
            yield Task(id=f"long-{task}", prompt=f"noise {words}")

    async def verify(self, task, rollout):
        return 1.0
"""


@pytest.fixture(scope="module")
def pair(vllm, tmp_path_factory):
    """The server of all tests, and another one."""
    other = Server(tiny_model(), tmp_path_factory.mktemp("vllm-2") / "log", core=1)
    try:
        other.wait()
        yield [vllm, other]
    finally:
        other.stop()


def cached_share(servers, folder, first, **settings):
    """The share of prompt tokens in the caches, by the servers' own count and by the report."""
    (folder / "long.py").write_text(PROMPTS)
    before = [server.cached_tokens() for server in servers]
    done = run(
        f"{folder / 'long.py'}:Long?first={first}",
        [server.url for server in servers],
        samples=16,
        out=folder / f"run-{first}",
        concurrency=32,
        sampling=Sampling(max_tokens=4),
        **settings,
    )
    counts = [(a - c, b - d) for (a, b), (c, d) in zip((s.cached_tokens() for s in servers), before, strict=True)]
    hits, asked = (sum(each) for each in zip(*counts, strict=True))
    assert all(queries > 0 for _, queries in counts)
    return hits / asked, done.report.cache


def test_two_servers_cache_as_much_as_one(pair, tmp_path):
    alone, _ = cached_share(pair[:1], tmp_path, 0)
    together, reported = cached_share(pair, tmp_path, 100)
    spread, _ = cached_share(pair, tmp_path, 200, routing="least-loaded")
    assert together >= 0.95 * alone
    assert spread < together
    assert reported is None or reported.share == pytest.approx(together, abs=0.05)
