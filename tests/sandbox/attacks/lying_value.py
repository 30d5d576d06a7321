# status: ok error
class Text(str):
    def __len__(self):
        return 0

    def __getitem__(self, item):
        return "x" * 100_000_000

    def encode(self, *_):
        return b"\xff" * 100


class Evil:
    def __repr__(self):
        return Text("fine")


Evil()
