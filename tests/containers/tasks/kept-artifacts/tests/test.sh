#!/bin/bash
[ "$(cat /app/report/summary.txt 2>/dev/null)" = ok ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
