"""Who answers: an OpenAI-compatible endpoint (vLLM first of all), the embedded model, or a script.

`open_model(spec, settings)` gives one of them; all speak `Model`. May import core, processes and tokens; knows
nothing of environments or books. A model never invents: what the server did not say is None or a RolloutFailed.
"""
