"""Numbers, offline and in one streaming pass: pure estimators, and the tally that a book is poured into.

Everything here needs NumPy: import it when numbers are wanted, not before. Nothing here reads a file or prints.
"""
