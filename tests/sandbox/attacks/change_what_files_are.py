# status: ok
import os
import sys

for path in ("/", "/tmp", "/etc", "/dev/null", os.path.dirname(os.__file__), os.__file__, "/usr/lib"):
    for act in (
        lambda: os.chmod(path, 0o777),
        lambda: os.chown(path, os.getuid(), os.getgid()),
        lambda: os.utime(path, (0, 0)),
        lambda: os.setxattr(path, "user.x", b"x"),
        lambda: os.truncate(path, 0),
        lambda: os.rename(path, path + ".x"),
        lambda: os.unlink(path),
    ):
        try:
            act()
            print("BREACH", path)
        except OSError:
            pass
