# status: error
import os

os.chroot("/box")
print("BREACH")
