#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The entry point that devstack calls in each of its phases. Enable the plugin with
#   enable_plugin cyborg https://opendev.org/openstack/cyborg

# shellcheck source=devstack/lib/cyborg
source "$(dirname "${BASH_SOURCE[0]}")/lib/cyborg"

function cyborg_phase {
    case "$1/${2:-}" in
        stack/install) install_cyborg ;;
        stack/post-config)
            configure_cyborg
            configure_nova_for_cyborg
            if is_service_enabled cyborg-api; then
                create_cyborg_accounts
                init_cyborg
            fi
            ;;
        stack/extra) start_cyborg ;;
        unstack/*) stop_cyborg ;;
        clean/*) cleanup_cyborg ;;
    esac
}

if is_service_enabled cyborg-api cyborg-cond cyborg-agent; then
    cyborg_phase "$@"
fi
