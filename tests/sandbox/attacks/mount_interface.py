# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for name, number in {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "statmount": 457, "listmount": 458}.items():
    if libc.syscall(number, -100, b"/", 0, 0, 0) >= 0 or libc.syscall(number, b"tmpfs", 0, 0, 0, 0) >= 0:
        print("BREACH", name)
