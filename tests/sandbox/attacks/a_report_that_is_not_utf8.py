# status: error
import os
import struct

body = b'{"value": "\xff\xfe"}'
os.write(3, struct.pack("<I", len(body)) + body)
os._exit(1)
