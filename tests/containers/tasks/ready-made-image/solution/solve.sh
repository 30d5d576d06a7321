#!/bin/bash
mkdir done
