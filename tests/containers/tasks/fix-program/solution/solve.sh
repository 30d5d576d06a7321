#!/bin/bash
sed -i 's/sorted(numbers)/sorted(numbers, reverse=True)/' sorting.py
