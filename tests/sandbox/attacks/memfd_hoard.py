# status: error
import os

while True:
    os.write(os.memfd_create("x"), b"x" * 1_000_000)
