#!/bin/bash
[ ! -e /tests ] && echo one > one.txt
