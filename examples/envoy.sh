#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs Envoy in a container with accelerators for TLS: envoy.sh UUID FOLDER PROFILE...
#
# FOLDER has envoy.yaml, tls.crt and tls.key. Of several profiles the first one that there is room for
# is taken. Envoy is started again when its accelerators change. It runs without any while there are
# none, and once Cyborg has not been heard for as long as the lease, since others may have them then.
# At a signal it ends, and gives everything back. Let it be a unit of systemd whose ExecStopPost removes
# the container envoy-UUID: if the script is killed, nobody else stops Envoy when the lease ends.
#
# IMAGE must have Envoy's contrib extensions; the agent of this host must have [agent] cdi_dir.
set -eu
. "$(dirname "$0")/allocation.sh"

uuid=$1 folder=$2
shift 2
container=envoy-$uuid
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
    seen=$(curl --silent --max-time "$LONGEST" --write-out '\n%{http_code}' \
        --header "X-Auth-Token: ${TOKEN:-}" \
        --header "OpenStack-API-Version: accelerator 2.4" "$CYBORG/v2/allocations/$uuid")
    [ "$(printf '%s' "$seen" | tail -n 1)" = 404 ] || [ "$(state_of "$seen")" = Failed ]
}

# serve NAMES: has Envoy run with these CDI devices and no others.
serve() {
    [ "${has-none yet}" != "$1" ] || return 0
    # First of all, so that it uses nothing any more, whatever comes.
    podman rm --force --ignore --time 5 "$container" >/dev/null
    # shellcheck disable=SC2046 # names have no blanks
    podman run --detach --name "$container" --network host --volume "$folder:/etc/envoy:ro" \
        --env ENVOY_UID=0 --cap-add IPC_LOCK --ulimit memlock=-1 $(printf '%s' "$1" | sed 's/^/--device=/') \
        "${IMAGE:-docker.io/envoyproxy/envoy:contrib-v1.34-latest}" --config-path /etc/envoy/envoy.yaml >/dev/null
    has=$1
}

finish() {
    status=$?
    trap - EXIT
    podman rm --force --ignore --time 5 "$container" >/dev/null || exit 1
    ask DELETE "/allocations/$uuid" >/dev/null || true
    exit "$status"
}
trap finish EXIT
trap 'exit 0' INT TERM

renewed=0
while :; do
    asked=$(date +%s)
    if answer=$(ask POST "/allocations/$uuid/renew" 2>/dev/null) || answer=$(allocate "$uuid" "$body"); then
        renewed=$asked
        names=$(printf '%s' "$answer" | cdi_devices)
        [ -n "$names" ] || echo "No name for containers: set [agent] cdi_dir on this host." >&2
        serve "$names"
    elif is_gone || [ "$(($(date +%s) - renewed + lease / 3))" -ge "$lease" ]; then
        serve ""
    fi
    sleep "$((lease / 3))" &
    wait $!
done
