#!/bin/bash
[ "$(cat /app/word.txt)" = "green-root---polite" ]
echo $((1 - $?)) > /logs/verifier/reward.txt
