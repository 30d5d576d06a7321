# status: error crash
with open("a", "wb") as file:
    file.seek(10_000_000_000)
    file.write(b"x")
