# status: ok
import os

for name, target in (("a", "/etc/passwd"), ("b", "/proc/1/environ"), ("c", "../etc/shadow")):
    os.symlink(target, name)
    try:
        print("BREACH", open(name).read())
    except OSError:
        pass
try:
    os.link("/usr/lib/os-release", "d")
    print("BREACH")
except OSError:
    pass
