#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command with an accelerator: batch-job.sh PROFILE COMMAND...
#
# The command finds the PCI addresses in CYBORG_DEVICES. The lease is renewed while it runs; if this
# machine dies, the accelerator is free when the lease has ended.
set -eu
. "$(dirname "$0")/allocation.sh"

profile=$1
shift
job=$(cat /proc/sys/kernel/random/uuid)
lease=${LEASE:-60}

renewing=
finish() {
    status=$?
    [ -z "$renewing" ] || kill "$renewing" 2>/dev/null || true
    ask DELETE "/allocations/$job" >/dev/null 2>&1 || true
    exit "$status"
}
trap finish EXIT
trap 'exit 143' INT TERM

answer=$(allocate "$job" '{
    "consumer": {"uuid": "'"$job"'", "type": "JOB", "name": "'"${1##*/}"'"},
    "device_profile_name": "'"$profile"'", "lease_seconds": '"$lease"'}')

while sleep "$((lease / 3))"; do
    ask POST "/allocations/$job/renew" >/dev/null || true
done >/dev/null 2>&1 &
renewing=$!

CYBORG_DEVICES=$(printf '%s' "$answer" | addresses) "$@"
