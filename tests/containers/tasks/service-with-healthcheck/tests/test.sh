#!/bin/bash
right=0; [ "$(cat /app/copy.txt 2>/dev/null)" = secret-of-the-service ] && right=1
echo $right > /logs/verifier/reward.txt
