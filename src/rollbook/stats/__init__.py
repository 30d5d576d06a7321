"""Numbers, offline: pure estimators, columns of scored rollouts, and what is made of them: metrics, profiles, choices.

Everything but `expression` and `curate` needs NumPy: import it when numbers are wanted, not before. Nothing here reads
a file or prints; `collect` pours books into columns.
"""
