#!/bin/bash
cp /run/service.ready /app/copy.txt
