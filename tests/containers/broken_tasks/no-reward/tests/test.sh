#!/bin/bash
echo looked; exit 3
