"""Untrusted code, run under hard limits and behind the kernel's own walls.

`Sandbox(limits=Limits(...))` keeps a few zygotes ready; `await box.run(code)` forks a fresh child from one and gives
a `Result`; `async with box.session() as s` keeps state across turns. What lives in `inner/` runs inside and imports the
standard library alone; how host and guests talk, and how to add a role, is told in `inner/channel.py`. Which walls
there are is found out in `tiers.py`, what a user insists on in `terms.py`. May import core, processes.
"""

from rollbook.sandbox.errors import SandboxError as SandboxError
from rollbook.sandbox.limits import Limits as Limits
from rollbook.sandbox.result import Result as Result
from rollbook.sandbox.sandbox import Sandbox as Sandbox
from rollbook.sandbox.session import Session as Session
