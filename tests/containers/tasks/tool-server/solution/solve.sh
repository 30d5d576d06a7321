#!/bin/bash
echo green-root---polite > /app/word.txt
