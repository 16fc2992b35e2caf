#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Debian packages for the tests, as root; tools/services.sh and .ci/run source this.

# Nothing that a package brings is started: servers would otherwise run on their default ports. In a
# subshell, whose end takes the prohibition back.
function install_debian_packages {
    (
        local policy=/usr/sbin/policy-rc.d
        if [[ ! -e $policy ]]; then
            # shellcheck disable=SC2064
            trap "rm -f $policy" EXIT
            printf '#!/bin/sh\nexit 101\n' >"$policy"
            chmod +x "$policy"
        fi
        export DEBIAN_FRONTEND=noninteractive
        apt-get update --quiet --quiet >/dev/null
        apt-get install --quiet --quiet --yes --no-install-recommends \
            -o DPkg::Lock::Timeout=300 "$@" </dev/null >/dev/null
    )
}
