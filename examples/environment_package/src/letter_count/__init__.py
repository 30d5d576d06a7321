"""Count a letter in a word."""

from letter_count.environment import LetterCount

__all__ = ["LetterCount"]
