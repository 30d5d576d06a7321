# status: ok
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
before = os.getresuid()
for act in (lambda: os.setresuid(0, 0, 0), lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.setresgid(0, 0, 0)):
    try:
        act()
    except OSError:
        pass
if os.getresuid() != before or os.getgroups() not in ([], [65534], [os.getgid()]):
    print("BREACH", os.getresuid(), os.getgroups())
data = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
if libc.capset(header, data) == 0:
    print("BREACH capabilities")
