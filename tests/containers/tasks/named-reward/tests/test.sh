#!/bin/bash
c=0; [ "$(cat /app/sum.txt 2>/dev/null)" = 5 ] && c=1
echo "{\"correct\": $c, \"speed\": 0.5}" > /logs/verifier/reward.json
