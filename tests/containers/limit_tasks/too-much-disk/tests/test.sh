#!/bin/bash
dd if=/dev/zero of=/more bs=1M count=15 2>/dev/null && sleep 8 && [ -f /big2 ] && echo 0.5 > /logs/verifier/reward.txt
