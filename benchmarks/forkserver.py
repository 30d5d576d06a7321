"""The yardstick of the sandbox: a plain fork server with rlimits and no walls, started clean, and its client."""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import subprocess

SERVER = """
import array, json, os, resource, socket, struct, sys

def serve(line):
    while True:
        head, extra, _, _ = line.recvmsg(4, socket.CMSG_SPACE(12))
        if not head:
            return
        (size,) = struct.unpack("<I", head)
        request = json.loads(line.recv(size, socket.MSG_WAITALL))
        handles = array.array("i", extra[0][2])
        child = os.fork()
        if not child:
            be_child(request, handles)
        for handle in handles:
            os.close(handle)
        _, status, usage = os.wait4(child, 0)
        line.sendall(struct.pack("<iI", os.waitstatus_to_exitcode(status), usage.ru_maxrss))

def be_child(request, handles):
    for place, handle in enumerate(handles):
        os.dup2(handle, place)
    os.closerange(3, 64)
    for what, value in ((resource.RLIMIT_AS, 512 << 20), (resource.RLIMIT_CPU, 5), (resource.RLIMIT_CORE, 0),
                        (resource.RLIMIT_FSIZE, 16 << 20), (resource.RLIMIT_NOFILE, 64)):
        resource.setrlimit(what, (value, value))
    code = 1
    try:
        exec(compile(request["code"], "<code>", "exec"), {"__name__": "__main__"})
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)

import gc
gc.collect()
gc.freeze()
serve(socket.socket(fileno=int(sys.argv[1])))
"""


class ForkServer:
    """One program at a time, in a fresh fork."""

    def __init__(self, python: str) -> None:
        ours, theirs = socket.socketpair()
        command = [python, "-I", "-S", "-c", SERVER, str(theirs.fileno())]
        self._child = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={})
        theirs.close()
        self._line = ours
        self.pid = self._child.pid

    def run(self, code: str) -> tuple[int, str]:
        """The exit code and what was printed."""
        import msgspec

        out, stdout = os.pipe()
        err, stderr = os.pipe()
        stdin = os.open("/dev/null", os.O_RDONLY)
        body = msgspec.json.encode({"code": code})
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [stdin, stdout, stderr]))]
        self._line.sendmsg([struct.pack("<I", len(body)), body], rights)
        for handle in (stdin, stdout, stderr):
            os.close(handle)
        said = drain([out, err])
        code_of, _ = struct.unpack("<iI", self._line.recv(8, socket.MSG_WAITALL))
        return code_of, said[out].decode()

    def close(self) -> None:
        self._line.close()
        self._child.wait(timeout=30)


def drain(handles: list[int]) -> dict[int, bytes]:
    """Read pipes to their ends."""
    said = dict.fromkeys(handles, b"")
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    left = set(handles)
    while left:
        for handle, _ in poll.poll():
            data = os.read(handle, 1 << 16)
            said[handle] += data
            if not data:
                poll.unregister(handle)
                os.close(handle)
                left.discard(handle)
    return said
