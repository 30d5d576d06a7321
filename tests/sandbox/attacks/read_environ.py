# status: ok
import glob

for path in glob.glob("/proc/*/environ"):
    print("BREACH", open(path).read())
import os

assert set(os.environ) <= {"LC_CTYPE"}, "BREACH"
