#!/bin/bash
echo many > /logs/verifier/reward.txt
