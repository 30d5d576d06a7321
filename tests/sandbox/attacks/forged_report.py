# status: error
import os

os.write(3, b'{"value": "forged"}')
os._exit(1)
