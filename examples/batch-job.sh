#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command with an accelerator: batch-job.sh PROFILE COMMAND...
#
# The command finds the PCI addresses in CYBORG_DEVICES. The lease is renewed while it runs; if this
# machine dies, the accelerator is free when the lease has ended. The command is killed when the
# accelerator is its own no more: when Cyborg says so, or has not renewed the lease in time.
set -eu
. "$(dirname "$0")/allocation.sh"

[ $# -ge 2 ] || { echo "usage: $0 PROFILE COMMAND..." >&2; exit 2; }
profile=$1
shift
job=$(cat /proc/sys/kernel/random/uuid)
lease=${LEASE:-60}

renewing='' running=''
finish() {
    status=$?
    for process in $renewing $running; do
        kill "$process" 2>/dev/null || true
    done
    ask DELETE "/allocations/$job" >/dev/null 2>&1 || true
    exit "$status"
}
trap finish EXIT
trap 'exit 143' INT TERM

answer=$(allocate "$job" '{
    "consumer": {"uuid": "'"$job"'", "type": "JOB", "name": "'"${1##*/}"'"},
    "device_profile_name": "'"$profile"'", "hosts": "'"${HOST_NAME:-$(uname -n)}"'",
    "lease_seconds": '"$lease"'}')

# In the background the command would have no input of its own.
exec 3<&0
CYBORG_DEVICES=$(printf '%s' "$answer" | addresses) "$@" <&3 3<&- &
running=$!

until_lost() {
    renewed=$(date +%s)
    while sleep "$((lease / 3))"; do
        asked=$(date +%s)
        code=$(status_of POST "/allocations/$job/renew")
        case $code in
            2*) renewed=$asked ;;
            404 | 409) break ;;
        esac
        [ "$(($(date +%s) - renewed + lease / 3))" -lt "$lease" ] || break
    done
    kill -KILL "$running" 2>/dev/null || true
}
until_lost >/dev/null 2>&1 &
renewing=$!

ended=0
wait "$running" || ended=$?
running=
exit "$ended"
