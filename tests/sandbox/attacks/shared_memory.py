# status: error
from multiprocessing import shared_memory

held = []
while True:
    held.append(shared_memory.SharedMemory(create=True, size=10_000_000))
print("BREACH")
