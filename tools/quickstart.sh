#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A first look at Cyborg on a machine with git, python3 >= 3.11 with venv, and a package index:
# installs it with the OpenStack client into a virtual environment of this checkout, starts
# cyborg-standalone, and leads one accelerator through its life.
#
#   tools/quickstart.sh           then keeps the service running, and says how to talk to it
#   tools/quickstart.sh --once    then ends; the exit status says whether all went well

set -o errexit -o nounset -o pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly REPOSITORY
readonly VENV=$REPOSITORY/.venv-quickstart

function say {
    echo "quickstart: $*" >&2
}

function die {
    say "$*"
    exit 1
}

# What has to be installed anew when it changes; a virtual environment cannot be moved either.
function fingerprint {
    echo "$REPOSITORY"
    python3 -c 'import sys; print(sys.version)'
    cat "$REPOSITORY/setup.cfg" "$REPOSITORY/requirements.txt" "$REPOSITORY/tools/quickstart.sh"
}

function install {
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "python3 is older than 3.11 or missing"
    local wanted
    wanted=$(fingerprint)
    [[ $wanted != "$(cat "$VENV/installed" 2>/dev/null)" ]] || return 0
    say "installing into ${VENV##*/}; this takes a minute or two"
    python3 -m venv --clear "$VENV" || die "python3 has no venv (Debian: python3-venv)"
    # pbr takes the version from git; an archive has none.
    git -C "$REPOSITORY" rev-parse HEAD >/dev/null 2>&1 ||
        export PBR_VERSION=${PBR_VERSION:-0.0.1}
    "$VENV/bin/pip" install --quiet --quiet --disable-pip-version-check \
        --no-compile --prefer-binary --editable "${REPOSITORY}[standalone]" \
        'python-openstackclient>=10.5' python-cyborgclient ||
        die "the installation failed; what pip says about it is above"
    echo "$wanted" >"$VENV/installed"
}

[[ $# -eq 0 || ($# -eq 1 && $1 == --once) ]] || die "usage: $0 [--once]"
# Python keeps what it compiles at the first use. To compile all at installation takes longer.
unset PYTHONDONTWRITEBYTECODE
install
exec "$VENV/bin/python" "$REPOSITORY/tools/quickstart.py" "$@"
