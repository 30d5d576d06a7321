"""Run untrusted code under hard limits and behind the kernel's isolation.

`Sandbox(limits=Limits(...))` keeps a few zygotes ready; `await sandbox.run(code)` forks a fresh child and returns a
`Result`; `async with sandbox.session() as session` keeps state across turns; `Grader` runs tests against a program that
cannot reach them. The modules in `inner/` run inside guests and import only the standard library; `inner/channel.py`
documents how host and guests communicate and how to add a role. `backends/` finds out which isolation this machine has.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.errors import SandboxError, SandboxUnsupported, TestsBroken
    from rollbook.sandbox.grading import Grader
    from rollbook.sandbox.limits import Limits, check_names
    from rollbook.sandbox.outputs import Rule, Spaces
    from rollbook.sandbox.results import ProgramError, Result, Verdict
    from rollbook.sandbox.sandbox import Sandbox, check_provider
    from rollbook.sandbox.server import SandboxServer
    from rollbook.sandbox.session import Session
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "Grader",
    "Limits",
    "ProgramError",
    "Result",
    "Rule",
    "Sandbox",
    "SandboxError",
    "SandboxServer",
    "SandboxUnsupported",
    "Session",
    "Spaces",
    "TestsBroken",
    "Verdict",
    "check_names",
    "check_provider",
]
