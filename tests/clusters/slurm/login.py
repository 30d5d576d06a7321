"""A login node: a private sshd on loopback, with its own keys, configuration and port, ended by its pid."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from cluster import free_ports

from rollbook.processes import die_with_parent
from support.alive import eventually

SEPARATED = Path("/run/sshd")
"""Where root's sshd puts those who have not logged in yet; it has to be there."""

DAEMON = """\
Port {port}
ListenAddress 127.0.0.1
HostKey "{folder}/host"
AuthorizedKeysFile "{folder}/user.pub"
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv {environ}
"""
CLIENT = """\
Host login
  HostName 127.0.0.1
  Port {port}
  IdentityFile "{folder}/user"
  IdentitiesOnly yes
  UserKnownHostsFile "{folder}/known"
  StrictHostKeyChecking accept-new
"""


def missing() -> str:
    """Why none can be started here; empty if one can."""
    absent = [name for name in ("sshd", "ssh", "ssh-keygen", "rsync") if _found(name) is None]
    return f"{', '.join(absent)} not installed (Debian: apt-get install openssh-server rsync)" if absent else ""


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


class Login:
    """It runs from `start` to `stop`; those who log in have `environ`. In `programs` is an ssh that knows it."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir(parents=True)
        (port,) = free_ports(1)
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        told = " ".join(f'"{name}={value}"' for name, value in environ.items())
        (folder / "daemon").write_text(DAEMON.format(port=port, folder=folder, environ=told))
        (folder / "client").write_text(CLIENT.format(port=port, folder=folder))
        wrapper = f'#!/bin/sh\nexec {_found("ssh")} -F "{folder}/client" "$@"\n'
        (self.programs / "ssh").write_text(wrapper)
        (self.programs / "ssh").chmod(0o755)
        self._log = folder / "sshd.log"

    def start(self) -> Login:
        """Until it listens."""
        self._ours = os.geteuid() == 0 and not SEPARATED.exists()
        if self._ours:
            SEPARATED.mkdir(mode=0o755)
        words = [str(_found("sshd")), "-D", "-f", str(self.folder / "daemon"), "-E", str(self._log)]
        self._daemon = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, preexec_fn=partial(die_with_parent, os.getpid())
        )
        assert eventually(lambda: self._log.exists() and "listening" in self._log.read_text(), 20), self.said()
        return self

    def said(self) -> str:
        """Its log."""
        return self._log.read_text() if self._log.exists() else ""

    def stop(self) -> None:
        """Nobody can log in any more."""
        self._daemon.terminate()
        self._daemon.wait(10)
        if self._ours:
            SEPARATED.rmdir()
            self._ours = False
