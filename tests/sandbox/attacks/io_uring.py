# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(256)
if libc.syscall(425, 8, parameters) >= 0 or libc.syscall(427, 0, 0, 0, 0) >= 0:
    print("BREACH")
