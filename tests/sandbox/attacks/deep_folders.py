# status: error timeout
import os

while True:
    os.mkdir("d")
    os.chdir("d")
