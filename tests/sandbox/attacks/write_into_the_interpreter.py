# status: ok
import os
import sys

for folder in [*sys.path, "/", "/usr/lib", os.path.dirname(os.__file__)]:
    try:
        open(os.path.join(folder, "evil.py"), "w").close()
        print("BREACH", folder)
    except OSError:
        pass
