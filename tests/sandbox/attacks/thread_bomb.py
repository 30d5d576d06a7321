# status: error memory timeout
import threading
import time

while True:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
