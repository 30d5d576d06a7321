# status: ok
import os

seen = []
for top in ("/home", "/root", "/etc", "/var", "/proc", "/sys", "/tmp", "/mnt", "/opt", "/run"):
    for folder, _, names in os.walk(top):
        seen += [os.path.join(folder, name) for name in names]
readable = [p for p in seen if os.access(p, os.R_OK) and "/lib/python" not in p and "/lib" not in p]
print("BREACH" if readable else "nothing", readable[:3])
