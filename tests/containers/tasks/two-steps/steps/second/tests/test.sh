#!/bin/bash
. /tests/judge.sh; [ -f /app/setup.txt ] && judge /app/two.txt "$WORD"
