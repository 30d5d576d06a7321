#!/bin/bash
# The service must run for the tests too: no healthcheck says when it does.
right=0; [ "$(cat < /dev/tcp/127.0.0.1/8090)" = "$(cat /app/reply.txt 2>/dev/null)" ] && [ -s /app/reply.txt ] && right=1
echo $right > /logs/verifier/reward.txt
