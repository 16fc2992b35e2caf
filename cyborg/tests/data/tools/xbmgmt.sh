#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands for xbmgmt: notes its arguments, and gives a simulated card a shell unless the file
# "refuses" is beside it.
here=$(dirname "$0")
echo "$*" >> "$here/asked"
[ "$1 $2 $3 $5" = "--force program --device --shell" ] || exit 2
if [ -e "$here/refuses" ]; then
    echo "ERROR: Shell download failed: Invalid argument"
    exit 1
fi
printf '["load_shell", "%s", "%s"]' "$4" "$(basename "$(dirname "$6")")" > /sys/.simulated
