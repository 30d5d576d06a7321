"""The gateway: any agent, in any language, asks a model through it and is recorded turn by turn.

`asked` is a request in our words; `chat responses anthropic` turn each protocol into it and an answer back, `events`
writes streams, `trouble` says what went wrong; none of them does I/O. `branches` tells which call continues which,
`recorder` keeps one rollout, `server` answers over HTTP. `local` serves one program of a run, `standalone` everybody.
"""
