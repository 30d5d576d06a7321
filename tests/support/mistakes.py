"""The table of mistakes: command lines that are wrong, and what the one line of the error must say.

Shared by tests/cli/test_mistakes.py, which checks it, and benchmarks/mistakes.py, which measures how long each takes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

DEADLINE_S = 20.0


class Mistake(NamedTuple):
    """A wrong command line: the words its error must have and must not have, and its exit code.

    `{server}` is the address of `serve_wrong_endpoints`.
    """

    line: str
    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    code: int = 2
    environ: Mapping[str, str] = {}


SUMS = """
from rollbook import Environment, Task

class Sums(Environment):
    def tasks(self):
        for i in range(3):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task, rollout):
        return rollout.text == task.answer
"""
CLOSED_PORT = "http://127.0.0.1:9"
NO_PROXY = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), "")


def write_files(folder: Path) -> None:
    """Write the files that the table names; `run` is made by RUN_LINE."""
    (folder / "sums.py").write_text(SUMS)
    (folder / "broken.py").write_text("class Sums(:\n")
    (folder / "plain.txt").write_text("hello\n")
    (folder / "empty").mkdir()
    (folder / "thesis").mkdir()
    (folder / "thesis" / "thesis.txt").write_text("precious\n")
    answers = [{"task": f"sum-{i}", "answer": str(2 * i)} for i in range(3)]
    (folder / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answers))
    (folder / "bad.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": \n')
    (folder / "sums.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    (folder / "unanswered.jsonl").write_text('{"question": "1 + 1?"}\n')
    (folder / "typo.yaml").write_text("samples: 2\ntemprature: 1\n")
    (folder / "short.yaml").write_text("k: 2\n")
    (folder / "word.toml").write_text('samples = "two"\n')
    (folder / "broken.yaml").write_text("samples: [1\n")
    (folder / "bare.jsonl").write_text('{"text": "1 + 1?"}\n')


RUN_LINE = "run sums.py:Sums -m scripted:script.jsonl -o runs/one"
MODEL = "-m scripted:script.jsonl"

OUTPUTS = (
    Mistake(f"run sums.py:Sums {MODEL} -o s3://bucket/run", ("s3://bucket/run", "local", "copy")),
    Mistake(f"run sums.py:Sums {MODEL} -o gs://bucket/run", ("gs://bucket/run", "local")),
    Mistake(f"plan sums.py:Sums {MODEL} -o file:///tmp/run", ("file://", "leave out file://")),
    Mistake(f"gateway {MODEL} -o s3://bucket/records", ("s3://bucket/records", "local")),
    Mistake("report s3://bucket/run", ("s3://bucket/run", "local")),
    Mistake("export runs/one -o https://host/rows.jsonl", ("https://host/rows.jsonl", "local")),
    Mistake("profile runs/one -o s3://bucket/profile.jsonl", ("s3://bucket/profile.jsonl", "local")),
    Mistake(f"run sums.py:Sums {MODEL} -o plain.txt", ("plain.txt", "is a file"), ("not empty",)),
    Mistake(f"run sums.py:Sums {MODEL} -o thesis", ("thesis is not empty", "--out"), ("resume",)),
    Mistake(f"run sums.py:Sums {MODEL} -o runs/one", ("is not empty", "rollbook resume runs/one")),
    Mistake(f"run sums.py:Sums {MODEL} -o plain.txt/run", ("plain.txt", "choose another --out"), ("make room",)),
    Mistake(f"run sums.py:Sums {MODEL} -o plain.txt/a/b", ("plain.txt", "choose another --out"), ("make room",)),
    Mistake(f"run sums.py:Sums {MODEL} -o /proc/none/run", ("/proc/none", "choose another --out"), ("make room",)),
    Mistake(f"run math {MODEL} --data rows.jsonl -o new/deep/run", ("rows.jsonl", "No such file")),
)
RUNS = (
    *(
        Mistake(f"{command} plain.txt", ("plain.txt is not a run directory", "is a file"))
        for command in ("resume", "status", "extend -k 2", "work", "cancel", "logs", "report", "verify", "reverify")
    ),
    Mistake("profile plain.txt -o rows.jsonl", ("plain.txt is not a run directory", "is a file")),
    Mistake("export plain.txt -o rows.jsonl", ("plain.txt is not a run directory", "is a file")),
    Mistake("compare runs/one plain.txt", ("plain.txt is not a run directory", "is a file")),
    Mistake("view plain.txt", ("plain.txt is not a folder",)),
    Mistake("resume nowhere", ("nowhere is not a run directory", "does not exist")),
    Mistake("resume empty", ("empty is not a run directory", "no run.json")),
    Mistake("status runs", ("runs is not a run directory", "folder of runs", "runs/one")),
    Mistake("view empty", ("empty holds no run", "rollbook run")),
    Mistake("extend runs/one -k 1", ("1",)),
    Mistake("extend runs/one", ("--samples",)),
    Mistake("resume runs/one --retry sometimes", ("sometimes",)),
    Mistake("compare runs/one", ("Missing argument",)),
)
DATA = (
    Mistake(f"run math {MODEL} --data openai/gsm8k", ("openai/gsm8k", "No such file", "hf://openai/gsm8k")),
    Mistake(f"run math {MODEL} --data rows.jsonl", ("rows.jsonl", "No such file"), ("hf://",)),
    Mistake(f"run math {MODEL} --data https://host/rows.jsonl", ("https://host/rows.jsonl", "download it")),
    Mistake(
        f"run math {MODEL} --data hf://org/name",
        ("hf://org/name", CLOSED_PORT, "does not answer", "network"),
        environ={**NO_PROXY, "HF_ENDPOINT": CLOSED_PORT},
    ),
    Mistake(
        f"run math {MODEL} --data hf://org/name",
        ("hf://org/name", "host.invalid", "does not answer"),
        environ={**NO_PROXY, "HF_ENDPOINT": "http://host.invalid"},
    ),
    Mistake(f"run math {MODEL} --data hf://org/name", ("hf://org/name", "ffline"), environ={"HF_HUB_OFFLINE": "1"}),
    Mistake(f"run math {MODEL} --data hf://org/name?splt=test", ("splt", "split=test")),
    Mistake(f"run math {MODEL}", ("math needs --data FILE",)),
    Mistake(f"run math {MODEL} --data bad.jsonl", ("bad.jsonl:2", "not JSON")),
    Mistake(f"run math {MODEL} --data unanswered.jsonl", ("unanswered.jsonl:1", "answer")),
    Mistake(f"run math {MODEL} --data bare.jsonl", ("bare.jsonl:1", "question", "text")),
    Mistake(f"run sums.py:Sums {MODEL} --data bad.jsonl", ("--data", "Sums")),
)
ENVIRONMENTS = (
    Mistake(f"run gsm8 {MODEL}", ("unknown environment 'gsm8'", "did you mean gsm8k?")),
    Mistake(f"run GSM8K {MODEL}", ("did you mean gsm8k?",)),
    Mistake(
        f"run hellaswag {MODEL}",
        ("unknown environment 'hellaswag'", "--data FILE", "docs/environments.md", "rollbook envs"),
        ("http", "gym+agent", "workplace"),
    ),
    Mistake(f"run gsm8k,humaneval {MODEL}", ("gsm8k,humaneval", "blend", "docs/blends.md")),
    Mistake(f"run hf://openai/gsm8k {MODEL}", ("hf://openai/gsm8k", "--data")),
    Mistake(f"run s3://bucket/env {MODEL}", ("s3://",)),
    Mistake(f"run sums.py:Sum {MODEL}", ("sums.py has no Sum", "did you mean Sums?")),
    Mistake(f"run sum.py:Sums {MODEL}", ("sum.py does not exist", "did you mean sums.py?")),
    Mistake(f"run broken.py:Sums {MODEL}", ("broken.py:1", "SyntaxError")),
    Mistake(f"run sums.py:Sums?size=3 {MODEL}", ("size",)),
    Mistake(f"run blend.yaml {MODEL}", ("blend.yaml", "No such file")),
    Mistake(f"run sums.py:Sums {MODEL} --task sum-9", ("sum-9",)),
    Mistake("check nothing", ("unknown environment 'nothing'",)),
)
SECRETS = (
    *(
        Mistake(
            f"{command} sums.py:Sums {MODEL} --sampling {words} -o runs/secret",
            ("--sampling", "use --header NAME=ENV_VAR"),
            ("sk-hidden-1",),
            environ={"OPENAI_API_KEY": "sk-hidden-1"},
        )
        for command in ("run", "plan", "submit")
        for words in ("user=sk-hidden-1", "api_key=sk-hidden-10", """'extra={"Authorization":"Bearer sk-hidden-1"}'""")
    ),
    Mistake(
        "plan sums.py:Sums -m anthropic/claude-x --sampling user=sk-hidden-1 -o runs/secret",
        ("--sampling", "use --header NAME=ENV_VAR"),
        ("sk-hidden-1",),
        environ={"ANTHROPIC_API_KEY": "sk-hidden-1"},
    ),
    Mistake(
        f"run sums.py:Sums {MODEL} --judge-sampling user=sk-hidden-1 -o runs/secret",
        ("--judge-sampling", "--judge-key-env NAME"),
        ("sk-hidden-1",),
        environ={"JUDGE_API_KEY": "sk-hidden-1"},
    ),
)
OPTIONS = (
    Mistake("rum gsm8k", ("Did you mean 'run'",)),
    Mistake("run", ("Missing argument 'ENVIRONMENT'", "rollbook run --help")),
    Mistake("run gsm8k --smaples 3", ("--smaples", "--samples")),
    Mistake("run gsm8k --api-key sk-123", ("--api-key",), ("sk-123",)),
    Mistake("run gsm8k -k 0", ("'--samples'",)),
    Mistake("run gsm8k -k many", ("'--samples'", "is not a whole number"), ("parse",)),
    Mistake("run gsm8k --temperature hot", ("'--temperature'", "is not a number"), ("parse",)),
    Mistake("run sums.py:Sums -m ftp://host/v1", ("ftp://host/v1", "only http and https work")),
    Mistake("run sums.py:Sums --config short.yaml", ("short.yaml:1", "'k'", "did you mean samples?")),
    Mistake("run gsm8k -n -1", ("'--limit'",)),
    Mistake("run gsm8k -c 0", ("-c 0", "auto")),
    Mistake("run gsm8k --temperature -1", ("'--temperature'",)),
    Mistake("run gsm8k --max-failures lots", ("--max-failures lots", "1%")),
    Mistake("run gsm8k --sampling top_k", ("--sampling top_k", "key=value")),
    Mistake("run gsm8k --on kubernetes", ("--on kubernetes", "slurm")),
    Mistake("run gsm8k --gpus 4", ("--gpus", "--on slurm")),
    Mistake("run gsm8k --serve vllm", ("--serve",)),
    Mistake("run gsm8k -m localhost:8000", ("localhost:8000",)),
    Mistake("run gsm8k -m scripted:none.jsonl", ("none.jsonl",)),
    Mistake("run gsm8k --prompt-template none.txt", ("none.txt",)),
    Mistake("report runs/one --at 0", ("--at 0", "--at 1,2,4,8")),
    Mistake("export runs/one -o rows.jsonl --format xml", ("xml",)),
    Mistake("reverify runs/one --only some", ("--only some",)),
    Mistake("sandbox run none.py", ("none.py", "No such file")),
    Mistake("local pul", ("Did you mean 'pull'",)),
)
FILES = (
    Mistake(f"run sums.py:Sums {MODEL} --config typo.yaml", ("typo.yaml:2", "did you mean temperature?")),
    Mistake(f"run sums.py:Sums {MODEL} --config word.toml", ("word.toml", "samples", "whole number")),
    Mistake(f"run sums.py:Sums {MODEL} --config broken.yaml", ("broken.yaml:2", "not YAML")),
    Mistake(f"run sums.py:Sums {MODEL} --config none.yaml", ("none.yaml", "No such file")),
    Mistake(f"run sums.py:Sums {MODEL} --config plain.txt", ("plain.txt", ".toml")),
    Mistake(f"run sums.py:Sums {MODEL} --save-config typo.yaml", ("typo.yaml", "exists")),
    Mistake("run sums.py:Sums -m https://me:sesame@host/v1 --save-config new.yaml", ("--model", "secret"), ("sesame",)),
    Mistake("envs gsm9k", ("did you mean gsm8k?",)),
    Mistake("envs mmlu --catalogue", ("--catalogue", "rollbook envs mmlu")),
    Mistake("envs --data bad.jsonl", ("--data", "name the environment")),
    Mistake("compare runs/one runs/one plain.txt", ("plain.txt is not a run directory",)),
)
SERVED = "run sums.py:Sums -o new -m {server}"
KEY = "set OPENAI_API_KEY to the key"
ENDPOINTS = (
    Mistake(f"{SERVED}/401/v1", ("HTTP 401", KEY), ("--concurrency", "resume")),
    Mistake(
        f"{SERVED}/401/v1",
        ("HTTP 401", "OPENAI_API_KEY was not accepted"),
        ("sesame",),
        environ={"OPENAI_API_KEY": "sesame"},
    ),
    Mistake(f"{SERVED}/401/v1 --api-key-env MY_KEY", ("HTTP 401", "set MY_KEY to the key")),
    Mistake(f"{SERVED}/403/v1", ("HTTP 403", KEY)),
    Mistake(f"{SERVED}/404/v1", ("HTTP 404", "check the path")),
    Mistake(f"{SERVED}/404/v1 --model-name mock", ("HTTP 404", "check the path"), ("resume",)),
    Mistake(f"{SERVED}/html/v1", ("HTML page", "check the path")),
    Mistake(f"{SERVED}/html/v1 --model-name mock", ("HTML page", "check the path")),
    Mistake(f"{SERVED}/ok", ("did you mean", "/ok/v1")),
    Mistake(f"{SERVED}/ok/v1 --model-name mok", ("does not serve 'mok'", "did you mean mock?")),
    Mistake(f"{SERVED}/two/v1", ("serves mock, mock-2", "--model-name")),
    Mistake(f"{SERVED}/seed/v1", ("refuses seed", "--sampling seed=null"), ("resume", "prompt")),
    Mistake(f"{SERVED}/moved/v1 --model-name mock", ("elsewhere", "-m")),
    Mistake(f"{SERVED}/503/v1", ("HTTP 503", "--wait")),
    Mistake(f"{SERVED}/ok/v1?api_key=sesame", ("--header",), ("sesame",)),
    Mistake(f"{SERVED}/ok/v1 --header api-key=NO_SUCH_VARIABLE", ("NO_SUCH_VARIABLE",)),
    Mistake(f"{SERVED}/ok/v1 --header api-key", ("NAME=ENV_VAR",)),
    Mistake(f"{SERVED}/ok/v1 --max-cost 1", ("--max-cost", "--price")),
    Mistake(f"{SERVED}/ok/v1 --order longest", ("--order longest", "profile:RUN")),
    Mistake(f"{SERVED}/ok/v1 --order profile:runs/none", ("runs/none is not a run directory",)),
    Mistake(f"{SERVED}/ok/v1 --routing random", ("--routing random", "affinity and least-loaded")),
    Mistake(f"{SERVED}/ok/v1 --price cheap", ("--price cheap", "in=")),
    Mistake(
        "run math --data sums.jsonl -o new -m {server}/ok/v1 --judge {server}/401/v1",
        ("judge", "HTTP 401", "JUDGE_API_KEY"),
    ),
    Mistake(f"run sums.py:Sums -o new -m {CLOSED_PORT}/v1", ("connection refused", "--wait")),
    Mistake("run sums.py:Sums -o new -m http://host.invalid/v1", ("host.invalid",), environ=NO_PROXY),
    Mistake("run sums.py:Sums -o new -m gpt-5", ("gpt-5", "openai/", "anthropic/")),
    Mistake("run sums.py:Sums -o new -m opnai/gpt-5", ("opnai/", "openai/")),
    Mistake("run sums.py:Sums -o new -m openai/gpt-5", ("OPENAI_API_KEY",), environ={"OPENAI_API_KEY": ""}),
    Mistake("run sums.py:Sums -o new -m anthropic/claude", ("ANTHROPIC_API_KEY",), environ={"ANTHROPIC_API_KEY": ""}),
    Mistake(
        "run sums.py:Sums -o new -m azure/gpt",
        ("AZURE_OPENAI_ENDPOINT",),
        environ={"AZURE_OPENAI_API_KEY": "x", "AZURE_OPENAI_ENDPOINT": ""},
    ),
    Mistake(f"doctor -m {CLOSED_PORT}/v1", ("connection refused",), ("0 s",), code=75),
)


@contextmanager
def serve_wrong_endpoints() -> Iterator[str]:
    """Serve endpoints that are wrong in one way each, by the first part of the path: /401/v1, /html/v1 ..."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _WrongEndpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _WrongEndpoint(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, _, rest = self.path[1:].partition("/")
        if kind in ("401", "404", "html", "moved") or rest.partition("?")[0] != "v1/models":
            self._refuse(kind if kind in ("401", "html") else "404")
        else:
            names = ["mock", "mock-2"] if kind == "two" else ["mock"]
            self._answer(200, json.dumps({"data": [{"id": name} for name in names]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind, _, rest = self.path[1:].partition("/")
        if rest.partition("?")[0] != "v1/chat/completions":
            self._refuse("404")
        elif kind == "ok" or (kind == "seed" and "seed" not in body):
            choice = {"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
            self._answer(200, json.dumps({"choices": [choice]}))
        else:
            self._refuse(kind)

    def _refuse(self, kind: str) -> None:
        if kind == "html":
            self._answer(200, "<html><title>Welcome</title></html>", "text/html")
        elif kind == "seed":
            error = {"message": "Unsupported parameter: 'seed'", "param": "seed", "code": "unsupported_parameter"}
            self._answer(400, json.dumps({"error": error}))
        elif kind == "moved":
            self._answer(301, "", location="/ok/v1")
        else:
            self._answer(int(kind), json.dumps({"error": {"message": "refused"}}))

    def _answer(self, status: int, text: str, kind: str = "application/json", location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        return


MISTAKES = (*ENDPOINTS, *FILES, *OUTPUTS, *RUNS, *DATA, *ENVIRONMENTS, *SECRETS, *OPTIONS)
