"""NeMo Gym's protocol, both ways.

`items parts tools tokens ending usage response params row verdict` turn its words into ours and back, `metrics passes`
count as it does; none of them does I/O. `resources gymnasium agent head` are its servers, `serve` starts one, `process`
starts one as a child. `config shim deployment` write what it needs to use ours; `harness framework` are what NeMo
Evaluator has. `driving` is the other way: running its servers and agents from here.
"""
