# status: ok error
import gc
import sys

frame = sys._getframe()
while frame.f_back:
    frame = frame.f_back
    for name, value in list(frame.f_locals.items()):
        if isinstance(value, dict) and "places" in value:
            print(sorted(value))
for thing in gc.get_objects():
    if isinstance(thing, dict) and "ROLLBOOK_SECRET" in str(thing.keys()):
        print("BREACH")
