# status: error
for number in range(1_000_000):
    open("é" * 120 + str(number), "w").close()
