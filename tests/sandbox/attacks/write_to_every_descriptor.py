# status: ok error
import os

for handle in range(1000):
    try:
        os.write(handle, b'{"value": "forged"}')
    except OSError:
        pass
