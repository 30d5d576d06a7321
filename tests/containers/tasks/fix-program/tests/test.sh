#!/bin/bash
cd /app && python3 -I - <<'P' && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
import importlib.util
spec = importlib.util.spec_from_file_location("sorting", "/app/sorting.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.largest([3, 1, 2]) == [3, 2]
P
