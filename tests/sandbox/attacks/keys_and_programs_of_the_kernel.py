# status: ok
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {"keyctl": 250, "add_key": 248, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "kexec_load": 246},
    "aarch64": {"keyctl": 219, "add_key": 217, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "kexec_load": 104},
}[os.uname().machine]
buffer = ctypes.create_string_buffer(128)
for name, number in NUMBERS.items():
    if libc.syscall(number, 0, buffer, 128, 0, 0) >= 0:
        print("BREACH", name)
