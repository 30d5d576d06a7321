#!/bin/bash
python3 /srv/words.py >/dev/null 2>&1 &
exec "$@"
