# status: ok
import sys

sys.stdout.buffer.write(b"\x00\xff\xfe\x80" * 100)
print("\u202e\x00\ud83d".encode("utf-16", "surrogatepass"))
