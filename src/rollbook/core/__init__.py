"""The nouns, and nothing else: task, message, turn, score, failure, rollout, plan, and the lines of a book.

No I/O and no clock here. Everything may import from core; core imports only `rollbook.errors`. The JSON Schemas in
`core/schemas` are generated from these nouns and may only change together with `SCHEMA`.
"""
