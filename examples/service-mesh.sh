#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Keeps accelerators for a proxy like Envoy, which reloads a file: service-mesh.sh UUID FILE PROFILE...
#
# Of several profiles the first one that there is room for is taken. FILE is replaced when what the
# proxy has changes: it has one address a line, and is empty while there is none, and once Cyborg has
# not been heard for as long as the lease. It ends, and gives everything back, at a signal.
set -eu
. "$(dirname "$0")/allocation.sh"

uuid=$1 file=$2
shift 2
lease=${LEASE:-60}
LONGEST=$((lease / 6 > 5 ? lease / 6 : 5))
alternatives=
for profile; do
    alternatives="$alternatives${alternatives:+, }{\"device_profile_name\": \"$profile\",
        \"hosts\": \"${HOST_NAME:-$(uname -n)}\"}"
done
body='{"consumer": {"uuid": "'"$uuid"'", "type": "MESH"}, "lease_seconds": '"$lease"',
    "alternatives": ['"$alternatives"']}'

is_gone() {
    code=$(curl --silent --max-time "$LONGEST" --output "$file.answer" --write-out '%{http_code}' \
        --header "X-Auth-Token: ${TOKEN:-}" \
        --header "OpenStack-API-Version: accelerator 2.4" "$CYBORG/v2/allocations/$uuid")
    state=$(state_of "$(cat "$file.answer")")
    rm -f "$file.answer"
    [ "$code" = 404 ] || [ "$state" = Failed ]
}

publish() {
    printf '%s' "$1" | addresses >"$file.new"
    cmp -s "$file.new" "$file" || mv "$file.new" "$file"
}

trap 'publish ""; ask DELETE "/allocations/$uuid" >/dev/null; exit 0' INT TERM

renewed=0
while :; do
    asked=$(date +%s)
    if answer=$(ask POST "/allocations/$uuid/renew" 2>/dev/null) || answer=$(allocate "$uuid" "$body"); then
        publish "$answer"
        renewed=$asked
    elif is_gone || [ "$(($(date +%s) - renewed + lease / 3))" -ge "$lease" ]; then
        publish ""
    fi
    sleep "$((lease / 3))" &
    wait $!
done
