#!/bin/bash
cmp -s /app/answer.txt /expected && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
