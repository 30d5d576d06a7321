# status: error
import os

os.execv("/bin/sh", ["sh", "-c", "echo BREACH"])
