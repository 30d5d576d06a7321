#!/bin/bash
echo hello > word.txt
