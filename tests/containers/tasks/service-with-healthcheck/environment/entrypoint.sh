#!/bin/bash
rm -f /run/service.ready
(sleep 0.5; echo secret-of-the-service > /run/service.ready) &
exec "$@"
