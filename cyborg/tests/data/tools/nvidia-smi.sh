#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands for nvidia-smi: notes its arguments, changes the GPU instances of a simulated card, and
# prints the files beside it that say how GPUs are linked. With a folder "proc" beside it, it shows
# the instances there as the kernel's driver does, which numbers them by their order.
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
        -lci) list=1 ;;
        -C) ;;
        *) exit 2 ;;
    esac
    shift
done
if [ -n "$list" ]; then
    number=0
    for profile in $(tr , ' ' < "/sys/.gpu_instances/$card"); do
        number=$((number + 1))
        echo "|   0      $number       MIG $profile           9         0          0:1     |"
    done
    exit 0
fi
if [ -n "$destroyed" ] && [ -z "$(cat "/sys/.gpu_instances/$card" 2>/dev/null)" ]; then
    echo "No $destroyed instances found: Not Found"
    exit 6
fi
[ "$destroyed" = compute ] && exit 0
present=$(cat "/sys/.gpu_instances/$card" 2>/dev/null)
[ -n "$wanted" ] && [ -n "$present" ] && wanted=$present,$wanted
if ! printf '["divide", "%s", "%s"]' "$card" "$wanted" > /sys/.simulated; then
    echo "Unable to change the GPU instances of GPU $card"
    exit 4
fi
[ -d "$here/proc" ] || exit 0
mig=$here/proc/capabilities/gpu0/mig
rm -rf "$mig"
mkdir "$mig"
number=0
for profile in $(echo "$wanted" | tr , ' '); do
    number=$((number + 1))
    mkdir -p "$mig/gi$number/ci0"
    echo "DeviceFileMinor: ${number}0" > "$mig/gi$number/access"
    echo "DeviceFileMinor: ${number}1" > "$mig/gi$number/ci0/access"
done
