# status: crash
import os
import resource
import signal

try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("BREACH")
except (ValueError, OSError):
    pass
held = bytearray(b"x") * 1_000_000
os.kill(os.getpid(), signal.SIGSEGV)
import ctypes

ctypes.string_at(0)
