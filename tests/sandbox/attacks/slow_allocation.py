# status: memory
held = []
while True:
    held.append(bytearray(100_000))
