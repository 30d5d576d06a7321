#!/bin/bash
for i in 1 2 3; do dd if=/dev/zero of=/big$i bs=1M count=15 2>/dev/null; done; sleep 30
