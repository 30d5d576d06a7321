# status: error
for i in range(1_000_000):
    open(str(i), "w").close()
