#!/bin/bash
echo green-by-url > /app/word.txt
