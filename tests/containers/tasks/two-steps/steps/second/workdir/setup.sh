#!/bin/bash
echo set > /app/setup.txt
