#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Build the contributor pages, the API reference and the release notes; a warning is an error.
# The pages land in <folder>/build/html, the manual pages in doc/build/man.

set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

function build {
    echo "docs: $1"
    sphinx-build -q -W --keep-going -E -a -b html -d "$1/build/doctrees" \
        "$1/source" "$1/build/html"
}

function build_release_notes {
    reno -q lint
    build releasenotes
}

# Which release a note belongs to is read from git. An archive or a shallow clone has not enough
# history for that, so there the notes are only checked, as if all were new.
function check_release_notes {
    local scratch
    scratch=$(mktemp --directory)
    # shellcheck disable=SC2064
    trap "rm --recursive --force '$scratch'" EXIT
    cp --recursive releasenotes "$scratch"
    cd "$scratch"
    git init --quiet
    git add releasenotes/notes
    git -c user.name=docs -c user.email=docs@localhost commit --quiet --message "Release notes"
    build_release_notes
}

build doc
echo "docs: manual pages"
sphinx-build -q -W --keep-going -E -a -b man -d doc/build/doctrees doc/source doc/build/man
build api-ref
if [[ $(git rev-parse --is-shallow-repository 2>/dev/null) == false ]]; then
    build_release_notes
else
    check_release_notes
fi
