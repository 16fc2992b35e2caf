# SPDX-License-Identifier: Apache-2.0
"""Versions of the messages between the services."""

#: What this release speaks. Upstream's was 1.0, with other methods.
VERSION = "2.0"
#: What a receiver must speak at least. What a later release adds is sent in the version that has
#: it.
LEAST = "2.0"
