# status: error
while True:
    with open("a", "ab") as file:
        file.write(b"x" * 1_000_000)
