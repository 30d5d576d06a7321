# status: killed
import json
import os
import struct

body = json.dumps({"value": "forged"}).encode()
frames = (struct.pack("<I", len(body)) + body) * 4000
try:
    while True:
        os.write(3, frames)
except OSError:
    pass
