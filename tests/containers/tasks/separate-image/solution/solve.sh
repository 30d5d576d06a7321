#!/bin/bash
echo 7 > answer.txt
