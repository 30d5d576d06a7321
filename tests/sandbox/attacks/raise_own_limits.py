# status: memory
import resource

for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    try:
        resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("BREACH", what)
    except (ValueError, OSError):
        pass
bytearray(2_000_000_000)
