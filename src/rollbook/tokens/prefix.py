"""How far two lists of ids agree, at the speed of list comparison."""

from __future__ import annotations


def shared_prefix(one: list[int], other: list[int]) -> int:
    """The number of leading ids the two share: linear, by halving, so that each step is one comparison in C.

    >>> shared_prefix([5, 6, 7], [5, 6, 8, 9])
    2
    """
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def overlap(tail: list[int], head: list[int]) -> int:
    """The length of the longest end of `tail` that `head` begins with, in linear time.

    >>> overlap([1, 2, 3, 4], [3, 4, 9])
    2
    """
    borders = [0]
    length = 0
    for value in head[1:]:
        while length and head[length] != value:
            length = borders[length - 1]
        length += head[length] == value
        borders.append(length)
    return _match_end(tail, head, borders) if head else 0


def _match_end(tail: list[int], head: list[int], borders: list[int]) -> int:
    length = 0
    for value in tail:
        while length and (length == len(head) or head[length] != value):
            length = borders[length - 1]
        length += head[length] == value
    return length
