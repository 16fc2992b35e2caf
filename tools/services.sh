#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Private RabbitMQ, MariaDB and PostgreSQL for the tests, without an init system.
#
#   tools/services.sh start [rabbitmq] [mariadb] [postgresql]    default: all three
#   tools/services.sh stop|status|restart [...]                  restart keeps data, port, password
#   tools/services.sh rabbitmqctl ARGUMENT...
#   tools/services.sh evaluate ERLANG               in RabbitMQ
#   eval "$(tools/services.sh env)"                 the URLs that the tests look for
#
# They listen on loopback only, on free ports, with throw-away data under /tmp (the servers' own
# users cannot always enter a checkout) and random passwords. What was started is recorded by pid
# and start time in $CYBORG_SERVICES_DIR (default: .services beside tools/), and nothing else is
# ever stopped. Missing Debian packages are installed when this runs as root.

set -o errexit -o nounset -o pipefail

readonly ALL=(rabbitmq mariadb postgresql)
REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
STATE=$(realpath --canonicalize-missing "${CYBORG_SERVICES_DIR:-$REPOSITORY/.services}")
readonly REPOSITORY STATE
readonly READY_SECONDS=120 STOP_SECONDS=30

declare -A PACKAGE=([rabbitmq]=rabbitmq-server [mariadb]=mariadb-server [postgresql]=postgresql)
declare -A SYSTEM_USER=([rabbitmq]=rabbitmq [mariadb]=mysql [postgresql]=postgres)
# RabbitMQ crashes; the databases, which do not sync what they write, must be stopped properly.
declare -A RESTART_SIGNAL=([rabbitmq]=KILL [mariadb]=TERM [postgresql]=INT)
declare -A VARIABLE=([rabbitmq]=CYBORG_TEST_RABBITMQ_URL [mariadb]=CYBORG_TEST_MYSQL_URL
    [postgresql]=CYBORG_TEST_POSTGRESQL_URL)

function say {
    echo "services: $*" >&2
}

function die {
    say "$*"
    exit 1
}

# --- packages -------------------------------------------------------------------------------

# shellcheck source=tools/services/packages.sh
source "$REPOSITORY/tools/services/packages.sh"

function postgresql_bin {
    local bins=(/usr/lib/postgresql/*/bin)
    printf '%s\n' "${bins[@]}" | sort --version-sort | tail -n 1
}

function installed {
    case $1 in
        rabbitmq) [[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]] ;;
        mariadb) [[ -x /usr/sbin/mariadbd ]] ;;
        postgresql) [[ -x $(postgresql_bin)/postgres ]] ;;
    esac
}

function install_packages {
    local service missing=()
    for service in "$@"; do
        installed "$service" || missing+=("${PACKAGE[$service]}")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    [[ $EUID -eq 0 ]] || die "not installed, and only root can do that: ${missing[*]}"
    command -v apt-get >/dev/null || die "not installed, and there is no apt-get: ${missing[*]}"
    say "installing ${missing[*]}"
    install_debian_packages "${missing[@]}"
}

# --- processes ------------------------------------------------------------------------------

# The start time tells a process from a later one that was given the same pid. A zombie is gone:
# in a container nobody may ever collect it.
function start_time {
    local fields
    fields=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 1
    [[ $fields != Z* ]] || return 1
    cut --delimiter=' ' --fields=20 <<<"$fields"
}

function alive {
    local pid=$1 started=$2 now
    now=$(start_time "$pid") && [[ $now == "$started" ]]
}

# All processes of a service that were recorded still run.
function running {
    local pid started
    [[ -s $STATE/$1/url && -s $STATE/$1/processes ]] || return 1
    while read -r pid started; do
        alive "$pid" "$started" || return 1
    done <"$STATE/$1/processes"
}

function as_user {
    local user=$1
    shift
    if [[ $EUID -eq 0 ]]; then
        set -- setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"
    fi
    "$@"
}

# Both setsid and setpriv replace themselves, so $! is the server; the lock (9) stays with us.
function launch {
    local service=$1 command
    shift
    command=(setsid "$@")
    if [[ $EUID -eq 0 ]]; then
        local user=${SYSTEM_USER[$service]}
        command=(setsid setpriv --reuid="$user" --regid="$user" --init-groups -- "$@")
    fi
    "${command[@]}" </dev/null >>"$STATE/$service/log" 2>&1 9>&- &
    echo "$! $(start_time $!)" >>"$STATE/$service/processes"
    disown
}

# Below the range that the kernel hands out to outgoing connections.
function free_ports {
    python3 - "$1" <<'PYTHON'
import random
import socket
import sys

held = []
while len(held) < int(sys.argv[1]):
    held.append(socket.socket())
    try:
        held[-1].bind(("127.0.0.1", random.randint(20000, 32000)))
    except OSError:
        held.pop()
print(*(s.getsockname()[1] for s in held))
PYTHON
}

function password {
    od --address-radix=n --format=x8 --read-bytes=16 /dev/urandom | tr --delete ' \n'
}

# Make the record and the data directory of a service; prints the latter.
function prepare {
    local service=$1 data
    mkdir --parents "$STATE/$service"
    data=$(mktemp --directory "/tmp/cyborg-$service.XXXXXX")
    echo "$data" >"$STATE/$service/data"
    [[ $EUID -ne 0 ]] || chown "${SYSTEM_USER[$service]}:" "$data"
    echo "$data"
}

# --- the servers ----------------------------------------------------------------------------

# Each file has for its server: create_, run_ and ready_.
# shellcheck source=tools/services/rabbitmq.sh
source "$REPOSITORY/tools/services/rabbitmq.sh"
# shellcheck source=tools/services/mariadb.sh
source "$REPOSITORY/tools/services/mariadb.sh"
# shellcheck source=tools/services/postgresql.sh
source "$REPOSITORY/tools/services/postgresql.sh"

# --- commands -------------------------------------------------------------------------------

function url_port {
    sed 's|.*:\([0-9]*\)/.*|\1|' "$STATE/$1/url.new"
}

# The URL gets its final name when the service answers: until then it does not count as running.
function await {
    local service=$1 pid started deadline=$((SECONDS + READY_SECONDS))
    until "ready_$service"; do
        while read -r pid started; do
            alive "$pid" "$started" || give_up "$service" "ended while starting"
        done <"$STATE/$service/processes"
        [[ $SECONDS -lt $deadline ]] || give_up "$service" "not ready in $READY_SECONDS s"
        sleep 0.2
    done
    mv "$STATE/$service/url.new" "$STATE/$service/url"
    say "$service is ready"
}

function give_up {
    tail -n 20 "$STATE/$1/log" >&2
    stop_service "$1"
    die "$1: $2"
}

function stop_process {
    local pid=$1 started=$2 signal=$3 deadline=$((SECONDS + STOP_SECONDS))
    while alive "$pid" "$started"; do
        kill "-$signal" "$pid" 2>/dev/null || true
        signal=0
        [[ $SECONDS -lt $deadline ]] || signal=KILL
        sleep 0.1
    done
}

function stop_service {
    # Data that are thrown away need no clean end; PostgreSQL must be let free its shared memory.
    local service=$1 pid started data signal=KILL
    [[ -d $STATE/$service ]] || return 0
    [[ $service != postgresql ]] || signal=QUIT
    if [[ -s $STATE/$service/processes ]]; then
        tac "$STATE/$service/processes" | while read -r pid started; do
            stop_process "$pid" "$started" "$signal"
        done
        say "$service is stopped"
    fi
    data=$(cat "$STATE/$service/data" 2>/dev/null || true)
    [[ $data != /tmp/cyborg-"$service".* ]] || rm --recursive --force "$data"
    rm --recursive --force "${STATE:?}/$service"
}

function start {
    local service wanted=()
    for service in "$@"; do
        if running "$service"; then
            say "$service already runs"
        else
            stop_service "$service"
            wanted+=("$service")
        fi
    done
    [[ ${#wanted[@]} -gt 0 ]] || return 0
    install_packages "${wanted[@]}"
    # An Erlang or MariaDB process sizes its tables by this limit; in containers it can be huge.
    [[ $(ulimit -n) != unlimited && $(ulimit -n) -le 65536 ]] || ulimit -n 65536
    for service in "${wanted[@]}"; do
        { "create_$service" && "run_$service"; } || give_up "$service" "cannot be started"
    done
    for service in "${wanted[@]}"; do
        await "$service"
    done
}

function stop {
    local service
    for service in "$@"; do
        stop_service "$service"
    done
    rmdir "$STATE" 2>/dev/null || true
}

# The server is the last of its service's processes.
function restart {
    local service pid started
    for service in "$@"; do
        [[ -s $STATE/$service/processes ]] || die "$service was not started"
        read -r pid started <<<"$(tail -n 1 "$STATE/$service/processes")"
        [[ ! -e $STATE/$service/url ]] || mv "$STATE/$service/url" "$STATE/$service/url.new"
        sed --in-place '$d' "$STATE/$service/processes"
        stop_process "$pid" "$started" "${RESTART_SIGNAL[$service]}"
        "run_$service"
        await "$service"
    done
}

function status {
    local service result=0
    for service in "$@"; do
        if running "$service"; then
            echo "$service runs, pid $(tail -n 1 "$STATE/$service/processes" | cut -d ' ' -f 1)"
        else
            echo "$service does not run"
            result=3
        fi
    done
    return "$result"
}

function print_environment {
    local service
    for service in "$@"; do
        ! running "$service" || echo "export ${VARIABLE[$service]}=$(cat "$STATE/$service/url")"
    done
}

function main {
    local action=${1:-} service
    shift || true
    if [[ $action == rabbitmqctl || $action == evaluate ]]; then
        "$action" "$@"
        return
    fi
    for service in "$@"; do
        [[ -n ${PACKAGE[$service]:-} ]] || die "no such service: $service (${ALL[*]})"
    done
    [[ $# -gt 0 ]] || set -- "${ALL[@]}"
    case $action in
        start | stop | restart)
            mkdir --parents "$STATE"
            chmod 700 "$STATE"
            exec 9<"$STATE"
            flock 9
            "$action" "$@"
            ;;
        status) status "$@" ;;
        env) print_environment "$@" ;;
        *) die "usage: $0 start|stop|restart|status|env [${ALL[*]}]" ;;
    esac
}

main "$@"
