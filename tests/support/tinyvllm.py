"""A real vLLM on one core, with a model that is made on the spot.

It runs with this Python, or with the one that ROLLBOOK_VLLM_PYTHON names; the model is kept beside its packages.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKER = ROOT / "tests/e2e/vllm/tinymodel.py"
START_S, MAKE_S = 900, 900
PYTHON = os.environ.get("ROLLBOOK_VLLM_PYTHON", sys.executable)
ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
FLAGS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "32"]
TELLING = ["--enable-prompt-tokens-details"]
WHOLE_PROMPTS = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
"""On the processor this vLLM dies of a request with a seed whose prompt is taken in pieces."""

PARSERS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
PROCESSED = ["--logprobs-mode", "processed_logprobs"]


def installed():
    """The version of vLLM that this Python has; None: none that can be imported."""
    code = "import vllm, sys; sys.stdout.write(vllm.__version__)"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=300)
    return done.stdout if done.returncode == 0 else None


def tiny_model():
    """The folder of the model, made anew when anything about its making has changed."""
    sources = [MAKER, ROOT / "tests/support/tinytokens.py", ROOT / "LICENSE"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = Path(PYTHON).parents[1] / "tiny-models" / digest
    if not (folder / "made").exists():
        command = [PYTHON, str(MAKER), str(folder)]
        subprocess.run(command, check=True, timeout=MAKE_S, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
        (folder / "made").touch()
    return folder


class Server:
    """A vLLM process."""

    def __init__(self, model, log, core=0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.root, self.log = f"http://127.0.0.1:{port}", log
        command = ["nice", PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
        command += [*FLAGS, *TELLING, *WHOLE_PROMPTS, *PARSERS, *PROCESSED]
        env = os.environ | ENGINE | {"VLLM_CPU_OMP_THREADS_BIND": str(core)}
        with open(log, "wb") as said:
            self._process = subprocess.Popen(
                command, stdout=said, stderr=said, env=env, start_new_session=True, cwd=log.parent
            )

    @property
    def url(self):
        return f"{self.root}/v1"

    def wait(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.log.read_text()[-4000:]
            try:
                with urllib.request.urlopen(f"{self.root}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"vLLM did not start in {START_S} s: {self.log.read_text()[-4000:]}")

    def stop(self):
        """End the server and the processes that it started: they are a session of their own."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(60)

    def cached_tokens(self):
        """How many tokens of prompts it has found in its prefix cache, and how many it has looked for."""
        with urllib.request.urlopen(f"{self.root}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        names = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
        return tuple(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)) for name in names)

    def ask(self, path, body):
        """The answer to a request that no client of ours makes."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.root}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)
