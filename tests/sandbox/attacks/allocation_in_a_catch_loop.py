# status: timeout memory
held = []
while True:
    try:
        held.append(bytearray(1_000_000))
    except MemoryError:
        pass
