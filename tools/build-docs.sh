#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Build the documentation and the API reference; a warning is an error.
# The pages land in <folder>/build/html, the manual pages in doc/build/man.

set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

function build {
    echo "docs: $1"
    sphinx-build -q -W --keep-going -E -a -b html -d "$1/build/doctrees" \
        "$1/source" "$1/build/html"
}

build doc
echo "docs: manual pages"
sphinx-build -q -W --keep-going -E -a -b man -d doc/build/doctrees doc/source doc/build/man
build api-ref
