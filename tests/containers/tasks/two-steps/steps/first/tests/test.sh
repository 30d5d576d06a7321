#!/bin/bash
. /tests/judge.sh; judge /app/one.txt one
