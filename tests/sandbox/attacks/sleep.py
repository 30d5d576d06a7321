# status: timeout
import time

time.sleep(60)
