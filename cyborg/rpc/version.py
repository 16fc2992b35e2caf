# SPDX-License-Identifier: Apache-2.0
"""Versions of the messages between the services."""

#: What this release speaks. 2.1 added ``program`` to the agent, 2.2 ``permit_write`` to the
#: conductor.
VERSION = "2.2"
#: What a receiver must speak at least, and what it must speak to be sent ``program`` or
#: ``permit_write``.
LEAST = "2.0"
PROGRAM = "2.1"
PERMIT_WRITE = "2.2"
