#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Run the tests and every other check on a machine with git, python3 >= 3.11 with venv, and a
# package index. Arguments are tox's, but for a first --quick:
#
#   tools/run-tests.sh                                    everything, two environments at a time
#   tools/run-tests.sh --quick                            style, types, and the quick tests
#   tools/run-tests.sh -e lint,mypy                       two of the environments of tox.ini
#   tools/run-tests.sh -e py3 -- cyborg/tests/unit -k arq arguments after -- are pytest's
#
# The servers that "services" and "tempest" need are started and stopped here, unless the
# CYBORG_TEST_* variables name others; "chaos" and "nova" start their own. The last line sums up
# the pytest runs and the other suites; the exit status is tox's, so a failed lint counts as well.

set -o errexit -o nounset -o pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly REPOSITORY
readonly VENV=$REPOSITORY/.venv-tox JUNIT=$REPOSITORY/.tox/junit
readonly QUICK='not services and not slow'
STARTED=()
RESULT=0
# shellcheck source=tools/services/packages.sh
source "$REPOSITORY/tools/services/packages.sh"

function say {
    echo "run-tests: $*" >&2
}

function die {
    say "$*"
    exit 1
}

function install_tox {
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "python3 is older than 3.11 or missing"
    [[ ! -x $VENV/bin/tox ]] || return 0
    say "installing tox into ${VENV##*/}"
    python3 -m venv --clear "$VENV" || die "python3 has no venv (Debian: python3-venv)"
    "$VENV/bin/pip" install --quiet 'tox>=4.11,<5' 'tox-uv>=1.33,<2'
    # With uv the environments are made in a sixth of the time. It does not read pip's settings, so
    # where it finds no index, pip makes them.
    "$VENV/bin/uv" pip install --quiet --dry-run --refresh-package pbr \
        --python "$VENV/bin/python" --reinstall-package pbr pbr 2>/dev/null ||
        "$VENV/bin/pip" uninstall --quiet --yes tox-uv tox-uv-bare
}

# Whether the arguments leave an environment that needs servers among those that tox will run.
function services_wanted {
    local expected='' environments=''
    for argument in "$@"; do
        [[ $argument != -- ]] || break
        case $expected$argument in
            -e | --env) expected=value: ;;
            value:*) environments+=,${argument} expected='' ;;
            -e*) environments+=,${argument#-e} ;;
            --env=*) environments+=,${argument#--env=} ;;
        esac
    done
    [[ -z $environments || ,$environments, =~ ,(services|tempest|ALL), ]]
}

function start_services {
    local -A variable=([rabbitmq]=CYBORG_TEST_RABBITMQ_URL [mariadb]=CYBORG_TEST_MYSQL_URL
        [postgresql]=CYBORG_TEST_POSTGRESQL_URL)
    local service
    for service in "${!variable[@]}"; do
        [[ -z ${!variable[$service]:-} ]] || continue
        tools/services.sh status "$service" >/dev/null || STARTED+=("$service")
    done
    [[ ${#STARTED[@]} -eq 0 ]] || tools/services.sh start "${STARTED[@]}" || no_services
    # What the caller has set goes before what runs here.
    for service in "${!variable[@]}"; do
        [[ -n ${!variable[$service]:-} ]] || eval "$(tools/services.sh env "$service")"
    done
}

function no_services {
    local names="CYBORG_TEST_RABBITMQ_URL, CYBORG_TEST_MYSQL_URL and CYBORG_TEST_POSTGRESQL_URL"
    say "the servers cannot be started here: their tests are skipped unless $names are set"
    # Where CI is set, those tests fail instead of being skipped.
    [[ -z ${CI:-} ]] || RESULT=1
}

function stop_services {
    [[ ${#STARTED[@]} -eq 0 ]] || tools/services.sh stop "${STARTED[@]}"
    STARTED=()
}

function main {
    cd "$REPOSITORY"
    case ${1:-} in
        '') set -- run-parallel --parallel 2 ;;
        --quick)
            set -- run-parallel --parallel 2 -e lint,mypy,py3 -- -m "$QUICK" "${@:2}"
            ;;
    esac
    export TOX_PARALLEL_NO_SPINNER=1
    # The certificates that pip believes.
    export UV_SYSTEM_CERTS=true
    install_tox
    # pbr takes the version from git; an archive has none.
    git rev-parse HEAD >/dev/null 2>&1 || export PBR_VERSION=${PBR_VERSION:-0.0.1}
    ! mysqlclient_compiles || export CYBORG_TEST_DRIVERS=mysqlclient
    trap stop_services EXIT
    ! services_wanted "$@" || start_services
    rm --recursive --force "$JUNIT"
    "$VENV/bin/tox" "$@" || RESULT=$?
    stop_services
    "$VENV/bin/python" tools/junit_summary.py "$JUNIT" || RESULT=1
    return "$RESULT"
}

main "$@"
