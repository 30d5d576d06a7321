"""How a model meets an environment: `SingleAnswer`, `ToolLoop`, `Dialogue`; `agent_for` picks the one it needs.
`Program` is any command from outside, which asks over HTTP; what serves it lies above and is found by entry point.

An agent drives the conversation of one rollout; it never scores. May import models and environments; knows nothing of
books, chunks or retries.
"""
