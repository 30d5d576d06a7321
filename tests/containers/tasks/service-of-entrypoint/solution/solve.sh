#!/bin/bash
until (exec 3<>/dev/tcp/127.0.0.1/8090) 2>/dev/null; do sleep 0.1; done
cat < /dev/tcp/127.0.0.1/8090 > /app/reply.txt
