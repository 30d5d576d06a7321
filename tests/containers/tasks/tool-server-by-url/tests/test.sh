#!/bin/bash
[ "$(cat /app/word.txt)" = "green-by-url" ]
echo $((1 - $?)) > /logs/verifier/reward.txt
