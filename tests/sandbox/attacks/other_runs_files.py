# status: ok
import os

for folder in ("/tmp", "/home", "/var/tmp", "/dev/shm", ".."):
    try:
        others = [name for name in os.listdir(folder) if name != os.path.basename(os.getcwd())]
    except OSError:
        continue
    if others:
        print("BREACH", folder, others)
here = os.getcwd()
for number in range(1, 200):
    for name in ("a.txt", "answer", "secret"):
        for path in (os.path.join(os.path.dirname(here), str(number), name), f"/tmp/{number}/{name}"):
            try:
                print("BREACH", open(path).read())
            except OSError:
                pass
