#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gives a TLS proxy on this host its accelerators: tls-proxy.sh start PROFILE FILE, or stop FILE.
#
# The addresses are written to FILE, as environment of the proxy's unit. The consumer's UUID stays in
# FILE.uuid, so that a restart finds what the proxy has already. It has no lease: a proxy that is up
# but cannot reach Cyborg keeps its accelerators.
set -eu
. "$(dirname "$0")/allocation.sh"

start() {
    [ -s "$2.uuid" ] || cat /proc/sys/kernel/random/uuid >"$2.uuid"
    uuid=$(cat "$2.uuid")
    answer=$(allocate "$uuid" '{
        "consumer": {"uuid": "'"$uuid"'", "type": "PROXY", "name": "tls-proxy"},
        "device_profile_name": "'"$1"'", "hosts": "'"${HOST_NAME:-$(uname -n)}"'"}')
    devices=$(printf '%s' "$answer" | addresses | tr '\n' ' ')
    printf 'TLS_OFFLOAD_DEVICES="%s"\n' "${devices% }" >"$2.new"
    mv "$2.new" "$2"
}

stop() {
    [ -s "$1.uuid" ] || return 0
    case $(status_of DELETE "/allocations/$(cat "$1.uuid")") in
        2* | 404) ;;
        *) return 1 ;;
    esac
    rm -f "$1" "$1.uuid"
}

"$@"
