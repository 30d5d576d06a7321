#!/bin/bash
right=0
[ "$(cat /app/answer.txt 2>/dev/null)" = 7 ] && [ "$(cat /app/state 2>/dev/null)" = running ] && [ ! -e /app/other ] && right=1
echo $right > /logs/verifier/reward.txt
