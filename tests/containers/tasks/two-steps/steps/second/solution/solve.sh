#!/bin/bash
[ -e /tests ] && touch /logs/artifacts/tests-of-the-first-step
[ -f one.txt ] && echo two > two.txt
