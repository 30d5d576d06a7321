# status: memory
bytearray(100_000_000_000)
