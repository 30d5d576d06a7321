#!/bin/bash
[ "$(id -un)" = root ] || exit 1
right=0; [ "$(cat /home/worker/who.txt 2>/dev/null)" = "$EXPECTED" ] && [ "$(stat -c %U /home/worker/who.txt)" = worker ] && right=1
echo $right > /logs/verifier/reward.txt
