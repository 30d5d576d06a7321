import pytest

from rollbook.environments.builtin.python_tool import PART_CHARS, render_result, truncate_middle
from rollbook.sandbox import Limits, ProgramError, Result

LIMITS = Limits(seconds=2, wall_seconds=6, memory_mb=64)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result("ok"), "Done; nothing was printed."),
        (Result("ok", stdout="a\nb\n", value="3", state="kept"), "a\nb\nValue: 3"),
        (Result("ok", stderr="careful\n"), "Printed to stderr:\ncareful"),
        (Result("ok", stdout="x", truncated=True), "x\nMore was printed than is kept."),
        (Result("error", error=ProgramError("ValueError", "no"), state="kept"), "ValueError: no"),
        (
            Result("error", error=ProgramError("ValueError", "no", "Traceback:\nValueError: no\n")),
            "Traceback:\nValueError: no",
        ),
        (
            Result("error", state="lost"),
            "It ended with an exit code.\nAll variables are lost; the next call begins afresh.",
        ),
        (
            Result("timeout", stdout="1\n", state="rolled back"),
            "1\nStopped: it took longer than 2 s of CPU time, or 6 s by the clock.\n"
            "Variables are as they were before this call.",
        ),
        (Result("memory", state="kept"), "Stopped: it needed more than 64 MB of memory."),
        (
            Result("crash", state="lost"),
            "The Python process crashed.\nAll variables are lost; the next call begins afresh.",
        ),
        (Result("ok", value="1", restarted=True), "Earlier variables were lost; this call began afresh.\nValue: 1"),
    ],
)
def test_every_end_is_told(result, text):
    assert render_result(result, LIMITS) == text


def test_long_output_keeps_both_ends():
    text = render_result(Result("ok", stdout="a" * 50_000 + "z" * 50_000, value="v" * 9_000), LIMITS)
    assert len(text) < 3 * PART_CHARS
    assert text.startswith("aaa")
    assert "[96000 characters left out]" in text
    assert "zzz\nValue: vvv" in text
    assert truncate_middle("short") == "short"
