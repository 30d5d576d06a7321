#!/bin/bash
python3 /opt/serve.py &
exec "$@"
