#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Debian packages for the tests, as root; tools/services.sh and .ci/run source this.

# Whether mysqlclient, which has no wheel, can be compiled here.
function mysqlclient_compiles {
    local headers
    headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))') || return 1
    [[ -e $headers/Python.h ]] && command -v cc >/dev/null &&
        pkg-config --exists libmariadb 2>/dev/null
}

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
