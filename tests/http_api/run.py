"""Run schemathesis over the OpenAPI description of every server: `make test-http`.

Each server is a real process on loopback. Schemathesis makes requests from its description, valid and invalid ones, and
checks every reply: no status of 500 or more, no reply later than a deadline, status, content type and body as
described (an error is one line), invalid requests refused, requests without a token refused, other methods refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from http_api.servers import SERVERS, RunningServer, Target

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "use_after_free",
)
REQUEST_TIMEOUT_S = 20
TARGET_TIMEOUT_S = 900


def main() -> int:
    """Test the servers that are named, or all; the exit code says whether every reply was right."""
    parser = argparse.ArgumentParser(prog="make test-http")
    parser.add_argument("servers", nargs="*", help=f"all by default; there are {', '.join(SERVERS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=30, help="for each operation")
    options = parser.parse_args()
    if unknown := set(options.servers) - set(SERVERS):
        parser.error(f"no server is called {min(unknown)}; there are {', '.join(SERVERS)}")
    print(f"seed {options.seed}, at most {options.examples} random examples for each operation", flush=True)
    failed = [name for name in options.servers or SERVERS if not check_server(name, options.seed, options.examples)]
    print(f"failed: {', '.join(failed)}" if failed else "every reply was as described")
    return bool(failed)


def check_server(name: str, seed: int, examples: int) -> bool:
    """Start a server and test each of its targets; print one line for each."""
    with tempfile.TemporaryDirectory(prefix="rollbook-http-") as folder, SERVERS[name](Path(folder)) as server:
        passed = [check_target(name, server, target, seed, examples, Path(folder)) for target in server.targets]
        if not all(passed):
            print((Path(folder) / "server.log").read_text()[-4000:])
    return all(passed)


def check_target(name: str, server: RunningServer, target: Target, seed: int, examples: int, folder: Path) -> bool:
    """Run schemathesis over a part of a server's operations. Replies that are all of one kind would prove little."""
    report = folder / f"{target.name}.ndjson"
    command = make_command(server, target, folder, report)
    command += ["--seed", str(seed), "--max-examples", str(examples)]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TARGET_TIMEOUT_S, check=False)
    replies = count_replies(report)
    passed = done.returncode == 0 and replies["2xx"] > 0 and replies["4xx"] > 0
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(replies.items()))
    print(
        f"{name} {target.name}: {counts}, {time.monotonic() - began:.0f} s, {'ok' if passed else 'FAILED'}", flush=True
    )
    if not passed:
        print(done.stdout[-20_000:], done.stderr[-4000:])
    return passed


def make_command(server: RunningServer, target: Target, folder: Path, report: Path) -> list[str]:
    """Return the command of schemathesis, without seed and number of examples."""
    config = folder / f"{target.name}.toml"
    config.write_text(make_config(target))
    checks = ",".join(check for check in CHECKS if check not in target.unchecked)
    return [
        *(str(Path(sys.executable).with_name("st")), "--config-file", str(config), "--no-color", "run"),
        *(f"{server.url}/openapi.json", *make_headers(server, target), "--include-path-regex", target.paths),
        *("--checks", checks, "--continue-on-failure", "--workers", "1", "--report-ndjson-path", str(report)),
        *("--request-timeout", str(REQUEST_TIMEOUT_S), "--max-response-time", str(REQUEST_TIMEOUT_S)),
    ]


def make_headers(server: RunningServer, target: Target) -> list[str]:
    """Return the options for the headers of every request. The description itself needs the token, too."""
    bearer = {"Authorization": f"Bearer {server.token}"} if server.token else {}
    return [f"--header={name}: {value}" for name, value in {**bearer, **target.headers}.items()]


def make_config(target: Target) -> str:
    """Return the configuration of schemathesis: parameters that exist, fixed or half of the time."""
    lines = ["max-stream-events = 3", "[generation]", "no-shrink = true", "[parameters]"]
    lines += [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in target.fixed.items()]
    for number, name in enumerate(target.likely):
        lines.append(f'{json.dumps(name)} = {{ dictionary = "values{number}", probability = 0.5 }}')
    for number, values in enumerate(target.likely.values()):
        lines += [f"[dictionaries.values{number}]", f"values = {json.dumps(values)}"]
    return "\n".join(lines) + "\n"


def count_replies(report: Path) -> Counter[str]:
    """Return how many replies there were of each kind: 2xx, 4xx, or none by the deadline."""
    counts: Counter[str] = Counter()
    for line in report.read_text().splitlines() if report.is_file() else ():
        recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
        for each in recorder.get("interactions", {}).values():
            counts[f"{each['response']['status_code'] // 100}xx" if each.get("response") else "none"] += 1
    return counts


if __name__ == "__main__":
    sys.exit(main())
