"""How many sessions the process's descriptors allow."""

from __future__ import annotations

PER_SESSION = 8
SPARE = 512
"""For everything else in the process."""


def room_for(sessions: int) -> int:
    """So many sessions, or fewer where the kernel's hard limit says so. The soft limit is raised to what they need."""
    try:
        import resource
    except ImportError:  # not Unix: there is no sandbox to fill either
        return sessions
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = PER_SESSION * sessions + SPARE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return sessions
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return max(1, min(sessions, (max(soft, allowed) - SPARE) // PER_SESSION))
