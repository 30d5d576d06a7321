# status: error
print("BREACH", open("/etc/passwd").read())
