# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A stand-in for devstack: what changes the machine is written to $CALLS instead; options are
# written to files for real.

# shellcheck disable=SC2034
{
    DEST=$SITE/dest
    DATA_DIR=$SITE/data
    STACK_USER=$(id -un)
    GIT_BASE=https://example.org
    SERVICE_PROTOCOL=http
    SERVICE_HOST=192.0.2.1
    SERVICE_PASSWORD=secret
    SERVICE_PROJECT_NAME=service
    SERVICE_DOMAIN_NAME=Default
    SERVICE_TIMEOUT=60
    REGION_NAME=RegionOne
    KEYSTONE_SERVICE_URI=http://192.0.2.1/identity
    ENABLE_DEBUG_LOG_LEVEL=True
    NOVA_CONF=$SITE/nova.conf
    NOVA_CPU_CONF=$SITE/nova-cpu.conf
}

function record {
    echo "$*" >>"$CALLS"
}

for name in git_clone setup_develop pip_install_gr create_service_user get_or_create_service \
    get_or_create_endpoint recreate_database run_process stop_process wait_for_service \
    remove_uwsgi_config define_plugin setup_logging write_uwsgi_config; do
    eval "function $name { record $name \"\$@\"; }"
done

function enable_service {
    ENABLED="${ENABLED:-} $*"
    record enable_service "$@"
}

# Whether one of them is enabled.
function is_service_enabled {
    local service
    for service in "$@"; do
        [[ " ${ENABLED:-} " != *" $service "* ]] || return 0
    done
    return 1
}

function iniset {
    printf '[%s]\n%s = %s\n' "$2" "$3" "$4" >>"$1"
}

function iniadd {
    iniset "$@"
}

function iniset_rpc_backend {
    iniset "$2" DEFAULT transport_url rabbit://stackrabbit:secret@192.0.2.1:5672/
}

function configure_keystone_authtoken_middleware {
    iniset "$1" keystone_authtoken auth_type password
    iniset "$1" keystone_authtoken username "$2"
}

function database_connection_url {
    echo "sqlite:///$SITE/$1.sqlite"
}

function get_python_exec_prefix {
    echo "$PROGRAMS"
}

function ipv6_unquote {
    echo "${1//[\[\]]/}"
}

function sudo {
    "$@"
}

function die {
    record die "$@"
    exit 1
}
