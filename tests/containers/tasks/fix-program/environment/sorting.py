def largest(numbers):
    """Return the two largest numbers, the largest first."""
    return sorted(numbers)[:2]
