# status: ok
import ctypes

libc = ctypes.CDLL("librt.so.1", use_errno=True)
if libc.mq_open(b"/breach", 0o102, 0o600, None) >= 0:
    print("BREACH")
