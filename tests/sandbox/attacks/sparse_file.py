# status: error crash
import os

handle = os.open("a", os.O_RDWR | os.O_CREAT)
os.ftruncate(handle, 1 << 40)
print("BREACH")
