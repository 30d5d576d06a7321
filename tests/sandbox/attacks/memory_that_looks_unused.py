# status: memory error timeout
import mmap

hoard = mmap.mmap(-1, 1 << 30)
step = 1 << 20
for at in range(0, len(hoard), step):
    hoard[at : at + step] = bytes(step)
    hoard.madvise(mmap.MADV_DONTNEED, at, step)
print("BREACH: a gigabyte that nobody counts")
