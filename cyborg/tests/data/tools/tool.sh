#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands for a vendor's tool: notes its arguments, then does what the test says.
here=$(dirname "$0")
printf '%s\n' "$@" > "$here/arguments"
# The tool is given no environment; the simulated sysfs is in one.
# shellcheck disable=SC2046
exec env $(cat "$here/simulated" 2>/dev/null) sh "$here/behaviour"
