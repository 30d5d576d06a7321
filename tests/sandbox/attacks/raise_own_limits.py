# status: memory
import resource

for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    before = resource.getrlimit(what)
    try:
        resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        pass
    if resource.getrlimit(what) != before:
        print("BREACH", what)
bytearray(2_000_000_000)
