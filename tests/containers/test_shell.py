"""The protocol of a kept shell, with the real loop in a shell of this machine; no container is needed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path

import pytest

from rollbook.containers import KeptShell
from rollbook.containers.shell import (
    BASH_DESCRIPTOR,
    MAIN_COMMAND,
    SH_DESCRIPTOR,
    BoundedOutput,
    CommandResult,
    MarkerScanner,
    quote,
)
from rollbook.errors import ClientKilled, ContainerError
from rollbook.processes import run_event_loop


def in_shell(work: Callable[[KeptShell], Awaitable[None]]) -> None:
    async def interrupt(script: str) -> None:
        # The first script kills by start times, on the whole machine: it is tried in containers only.
        if match := re.fullmatch(r"kill -9 (\d+)", script):
            with suppress(ProcessLookupError):
                os.kill(int(match[1]), signal.SIGKILL)

    async def main() -> None:
        shell = KeptShell(MAIN_COMMAND, interrupt)
        await shell.open(30)
        try:
            await work(shell)
        finally:
            await shell.close()

    asyncio.run(main())


def test_folder_variables_and_functions_stay() -> None:
    async def work(shell: KeptShell) -> None:
        await shell.run("cd /tmp; x=5; f() { echo f$1; }", 30)
        result = await shell.run("pwd; echo $x; f 2", 30)
        assert result == CommandResult(0, b"/tmp\n5\nf2\n")

    in_shell(work)


def test_any_bytes_come_back_with_the_exit_code() -> None:
    async def work(shell: KeptShell) -> None:
        result = await shell.run(r"printf 'a\0\377\n\nrollbook-00 1\nno end'; (exit 7)", 30)
        assert (result.exit_code, result.output) == (7, b"a\0\xff\n\nrollbook-00 1\nno end")
        assert (await shell.run("echo to stderr >&2", 30)).output == b"to stderr\n"
        assert (await shell.run('cat; echo "it\'s"', 30)).output == b"it's\n"

    in_shell(work)


def test_a_command_cannot_redirect_the_shell_for_good(tmp_path: object) -> None:
    async def work(shell: KeptShell) -> None:
        assert (await shell.run(f"exec >{tmp_path}/file; echo lost", 30)).output == b""
        assert (await shell.run("echo seen", 30)).output == b"seen\n"

    in_shell(work)


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("exec true", 0), ("kill -9 $$", 137)])
def test_a_shell_that_ends_is_replaced(command: str, code: int) -> None:
    async def work(shell: KeptShell) -> None:
        await shell.run("x=5", 30)
        result = await shell.run(f"echo before; {command}", 30)
        assert (result.exit_code, result.output, result.shell_ended) == (code, b"before\n", True)
        assert (await shell.run("echo [$x]", 30)) == CommandResult(0, b"[]\n")

    in_shell(work)


@pytest.mark.parametrize("plain", [False, True], ids=["bash", "sh"])
def test_a_shell_whose_descriptor_a_command_closes_is_replaced_at_once(
    plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        (tmp_path / "sh").symlink_to("/bin/sh")
        monkeypatch.setenv("PATH", str(tmp_path))

    async def work(shell: KeptShell) -> None:
        assert shell.descriptor == (SH_DESCRIPTOR if plain else BASH_DESCRIPTOR)
        result = await shell.run(f"echo before; exec {shell.descriptor}>&-; echo after", 30)
        assert result == CommandResult(1, b"before\nafter\n", shell_ended=True)
        assert await shell.run("echo ok", 30) == CommandResult(0, b"ok\n")

    in_shell(work)


@pytest.mark.parametrize("broken", ["if then 'unclosed", "echo 'unclosed", 'echo "', "echo $((", "(", "f() {"])
def test_broken_syntax_does_not_break_the_next_command(broken: str) -> None:
    async def work(shell: KeptShell) -> None:
        await shell.run("x=3", 30)
        assert (await shell.run(broken, 30)).exit_code != 0
        for alone in (False, True):
            assert (await shell.run("echo ok $x", 30, alone=alone)).output == b"ok 3\n"

    in_shell(work)


def test_a_command_that_ends_with_a_backslash_does_not_break_the_next_one() -> None:
    async def work(shell: KeptShell) -> None:
        await shell.run("x=3; echo \\", 30)
        assert (await shell.run("echo ok $x", 30)).output == b"ok 3\n"

    in_shell(work)


def test_a_command_past_its_deadline_ends_and_the_shell_goes_on() -> None:
    async def work(shell: KeptShell) -> None:
        result = await shell.run("echo begun; while :; do :; done", 0.2)
        assert (result.output, result.timed_out, result.shell_ended) == (b"begun\n", True, True)
        assert (await shell.run("echo ok", 30)).output == b"ok\n"

    in_shell(work)


def test_long_output_keeps_both_ends() -> None:
    async def work(shell: KeptShell) -> None:
        result = await shell.run("i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); done", 60, max_bytes=1000)
        total = sum(len(f"line-{i}\n") for i in range(20000))
        assert len(result.output) == 1000
        assert result.omitted == total - 1000
        assert result.text.startswith("line-0\n")
        assert result.text.endswith("line-19999\n")
        assert f"[{result.omitted} bytes left out here]" in result.text

    in_shell(work)


@pytest.mark.parametrize("stream", [1, 2])  # podman writes its errors to the second, docker some to the first
def test_a_process_that_cannot_start_is_explained(stream: int) -> None:
    async def main() -> None:
        async def interrupt(script: str) -> None:
            raise AssertionError(script)

        shell = KeptShell(["/bin/sh", "-c", f"exec <&-; echo Error: no such image >&{stream}; exit 125"], interrupt)
        with pytest.raises(ContainerError, match="did not start: Error: no such image"):
            await shell.open(30)

    asyncio.run(main())


def test_the_shell_ends_with_our_end_of_the_pipe() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec(*MAIN_COMMAND, stdin=asyncio.subprocess.PIPE)
        assert process.stdin
        process.stdin.write(b"word\n")
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_marker_is_found_however_the_stream_is_cut(size: int) -> None:
    stream, output = b"some\noutput\n\nword 12\nrest", BoundedOutput(100)
    scanner = MarkerScanner(("word", "end"), output)
    at = 0
    found = None
    while found is None:
        found = scanner.feed(stream[at : at + size])
        at += size
    word, number, rest = found
    assert (word, number, rest + stream[at:]) == ("word", 12, b"rest")
    assert output.result() == (b"some\noutput\n", 0)


def test_a_marker_without_an_end_is_output_and_does_not_stay_in_memory() -> None:
    output = BoundedOutput(100)
    scanner = MarkerScanner(("word", "end"), output)
    assert scanner.feed(b"first\nword ") is None
    for _ in range(100):
        assert scanner.feed(b"x" * 10_000) is None
        assert len(scanner._buffer) < 20_000
    assert scanner.feed(b"\nword 7\nrest") == ("word", 7, b"rest")
    assert output.result() == (b"first\nword " + b"x" * 89, len(b"first\nword ") + 1_000_000 - 100)


def test_bounded_output_never_holds_more_than_its_bound() -> None:
    output = BoundedOutput(10)
    for piece in (b"abc", b"defgh", b"ijklmnopqrstuvwxyz", b"0"):
        output.add(piece)
    assert output.result() == (b"abcdewxyz0", 17)


def test_a_nul_character_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")


def test_a_client_that_is_killed_on_this_machine_is_told_from_a_shell_that_is_killed_inside() -> None:
    async def work(shell: KeptShell) -> None:
        running = asyncio.create_task(shell.run("sleep 4", 30))  # it still has the pipe
        await asyncio.sleep(0.3)
        began = time.monotonic()
        os.kill(shell.pid, signal.SIGKILL)
        with pytest.raises(ClientKilled, match="killed on this machine"):
            await running
        assert time.monotonic() - began < 3

    in_shell(work)

    async def kill_inside() -> None:
        async def interrupt(script: str) -> None:
            raise AssertionError(script)

        # Like the command of a runtime, it ends with the exit code of the process inside.
        client = KeptShell(("/bin/sh", "-c", '/bin/sh -c "$0"; exit $?', MAIN_COMMAND[-1]), interrupt)
        await client.open(30)
        with pytest.raises(ContainerError) as caught:
            await client.run("kill -9 $PPID $$", 30)
        assert type(caught.value) is ContainerError
        await client.close()

    asyncio.run(kill_inside())


@pytest.mark.parametrize("run_loop", [lambda make: asyncio.run(make()), run_event_loop])
@pytest.mark.parametrize("ended", [False, True])
def test_a_shell_closes_at_once_when_nobody_has_read_what_its_processes_print(
    run_loop: Callable[[Callable[[], Coroutine[None, None, None]]], None], ended: bool
) -> None:
    async def main() -> None:
        async def interrupt(script: str) -> None:
            raise AssertionError(script)

        # Like the command of a runtime, one process has our pipe and copies what comes from inside.
        client = ("bash", "-c", 'exec cat < <(/bin/sh -c "$0")', MAIN_COMMAND[-1])
        shell = KeptShell(client, interrupt)
        await shell.open(30)
        await shell.run("yes &", 30)
        await asyncio.sleep(0.5)  # more comes than the loop keeps for a reader
        if ended:
            os.kill(shell.pid, signal.SIGKILL)
            await asyncio.sleep(0.2)
        async with asyncio.timeout(3):
            await shell.close()

    run_loop(main)  # uvloop fails at its end if a pipe is open and unread


def test_a_forged_end_with_thousands_of_digits_is_an_exit_code_of_1() -> None:
    assert MarkerScanner(("word",), BoundedOutput()).feed(b"\nword " + b"7" * 5000 + b"\n") == ("word", 1, b"")
