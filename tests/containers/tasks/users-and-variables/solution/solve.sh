#!/bin/bash
echo "$(id -un) $COLOUR" > "$FILE"
