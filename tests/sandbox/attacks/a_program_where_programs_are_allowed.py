# status: error
# processes: 4
import subprocess

print("BREACH", subprocess.run(["/bin/sh", "-c", "id"], capture_output=True).stdout)
