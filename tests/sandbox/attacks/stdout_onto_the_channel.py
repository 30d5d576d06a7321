# status: ok error
import os

for handle in range(3, 64):
    try:
        os.dup2(handle, 1)
        os.dup2(handle, 2)
    except OSError:
        pass
print("forged")
