#!/bin/bash
printf 42 > /app/number.txt
