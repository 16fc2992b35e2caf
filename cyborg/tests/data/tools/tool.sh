#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands for a vendor's tool: notes its arguments, then does what the test says.
here=$(dirname "$0")
printf '%s\n' "$@" > "$here/arguments"
. "$here/behaviour"
