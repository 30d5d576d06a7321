# status: ok
import os
import stat

for kind, device in ((stat.S_IFBLK, (8, 0)), (stat.S_IFCHR, (1, 1)), (stat.S_IFCHR, (5, 0))):
    try:
        os.mknod("device", kind | 0o666, os.makedev(*device))
        print("BREACH")
    except OSError:
        pass
for path in ("/dev/mem", "/dev/kvm", "/dev/tty", "/dev/fuse", "/dev/vda", "/dev/shm/x", "/dev/ptmx"):
    try:
        os.open(path, os.O_RDWR | os.O_CREAT)
        print("BREACH", path)
    except OSError:
        pass
