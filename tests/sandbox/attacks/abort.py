# status: crash
import os

os.abort()
