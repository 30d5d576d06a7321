#!/bin/bash
n=$(cat /app/number.txt 2>/dev/null)
large=0; [ "${n:-0}" -gt 10 ] 2>/dev/null && large=1
tidy=0; [ "$(wc -c < /app/number.txt 2>/dev/null)" = "${#n}" ] && [ "$large" = 1 ] && tidy=1
echo "{\"reward\": $large, \"tidy\": $tidy}" > /logs/verifier/reward.json
