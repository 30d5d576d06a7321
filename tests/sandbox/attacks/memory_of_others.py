# status: ok
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


buffer = ctypes.create_string_buffer(64)
ours = Vector(ctypes.addressof(buffer), 64)
for pid in [*range(1, 100), os.getppid()]:
    for call in (libc.process_vm_readv, libc.process_vm_writev):
        if call(pid, ctypes.byref(ours), 1, ctypes.byref(ours), 1, 0) > 0:
            print("BREACH", pid)
    try:
        print("BREACH", open(f"/proc/{pid}/mem", "r+b"))
    except OSError:
        pass
