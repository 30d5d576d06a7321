"""Run a command with docker: by the engine that runs here, or by a private one that is started for it (as root).

python tests/containers/real/docker_engine.py COMMAND... prints loudly why there is no engine, and then runs nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from base_image import IMAGE

from rollbook.containers.runtime import RUNTIME_VARIABLE

START_S, STOP_S = 60.0, 120.0
ENDPOINT = "DOCKER_HOST"


def has_engine(env: dict[str, str]) -> bool:
    """Return whether an engine answers."""
    return subprocess.run(["docker", "info"], env=env, capture_output=True, check=False).returncode == 0


@contextmanager
def open_engine() -> Iterator[dict[str, str] | None]:
    """Yield the environment in which docker has an engine; None if there is none and none can be started."""
    env = dict(os.environ)
    if not shutil.which("docker") or has_engine(env):
        yield env if shutil.which("docker") else None
        return
    if not shutil.which("dockerd") or os.geteuid() != 0:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rollbook-docker-") as name:
        folder = Path(name)
        engine = start_engine(folder)
        env[ENDPOINT] = f"unix://{folder}/socket"
        try:
            yield env if wait_for_engine(engine, env) else None
        finally:
            stop_engine(engine)


def start_engine(folder: Path) -> subprocess.Popen[bytes]:
    """Start an engine that shares nothing with another one, and leaves the network of this machine alone."""
    command = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    command += ["--pidfile", f"{folder}/pid", "--host", f"unix://{folder}/socket"]
    command += ["--bridge=none", "--iptables=false", "--ip6tables=false"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def stop_engine(engine: subprocess.Popen[bytes]) -> None:
    """End the engine, which ends its containers; one that does not end in time is killed, loudly."""
    engine.terminate()
    try:
        engine.wait(STOP_S)
    except subprocess.TimeoutExpired:
        print(f"dockerd did not end within {STOP_S:g} s and was killed", file=sys.stderr)
        engine.kill()
        engine.wait()


def wait_for_engine(engine: subprocess.Popen[bytes], env: dict[str, str]) -> bool:
    """Return whether the engine answers in time."""
    deadline = time.monotonic() + START_S
    while engine.poll() is None and time.monotonic() < deadline:
        if has_engine(env):
            return True
        time.sleep(0.2)
    return False


def copy_image(env: dict[str, str]) -> None:
    """Give docker the image that podman has."""
    if subprocess.run(["docker", "image", "inspect", IMAGE], env=env, capture_output=True, check=False).returncode:
        podman = subprocess.Popen(["podman", "save", IMAGE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        subprocess.run(["docker", "load"], env=env, stdin=podman.stdout, check=True, capture_output=True)
        podman.wait()


def main(command: list[str]) -> int:
    """Run the command, and return its exit code."""
    with open_engine() as env:
        if env is None:
            print("NO DOCKER HERE: no engine runs and none can be started (docker.io, as root): its tests are skipped")
            return 0
        copy_image(env)
        return subprocess.run(command, env={**env, RUNTIME_VARIABLE: "docker"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
