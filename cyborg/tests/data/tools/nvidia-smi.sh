#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands for nvidia-smi: notes its arguments, changes the GPU instances of a simulated card, and
# prints the files beside it that say how GPUs are linked.
here=$(dirname "$0")
echo "$*" >> "$here/asked"
case "$1" in
    topo) exec cat "$here/topo" ;;
    --query-gpu=index,pci.bus_id) exec cat "$here/places" ;;
    mig) ;;
    *) exit 2 ;;
esac
shift
while [ $# -gt 0 ]; do
    case "$1" in
        -i) card=$2; shift ;;
        -cgi) wanted=$2; shift ;;
        -dci) destroyed=compute ;;
        -dgi) destroyed=GPU ;;
        -C) ;;
        *) exit 2 ;;
    esac
    shift
done
if [ -n "$destroyed" ] && [ -z "$(cat "/sys/.gpu_instances/$card" 2>/dev/null)" ]; then
    echo "No $destroyed instances found: Not Found"
    exit 6
fi
[ "$destroyed" = compute ] && exit 0
if ! printf '["divide", "%s", "%s"]' "$card" "$wanted" > /sys/.simulated; then
    echo "Unable to change the GPU instances of GPU $card"
    exit 4
fi
