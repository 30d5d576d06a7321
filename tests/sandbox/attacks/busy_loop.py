# status: timeout
while True:
    pass
