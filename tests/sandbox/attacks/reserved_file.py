# status: error crash
import os

for number in range(100):
    handle = os.open(str(number), os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(handle, 0, 7 << 20)
print("BREACH")
