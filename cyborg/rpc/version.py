# SPDX-License-Identifier: Apache-2.0
"""Versions of the messages between the services."""

#: What this release speaks. 2.1 added ``program`` to the agent, 2.2 ``permit_write`` and
#: ``report_unchanged`` to the conductor, 2.3 ``held_handles``, 2.4 the consumer of a host step.
VERSION = "2.4"
#: What a receiver must speak at least, and what it must speak to be sent one of the others.
LEAST = "2.0"
PROGRAM = "2.1"
PERMIT_WRITE = "2.2"
REPORT_UNCHANGED = "2.2"
HELD_HANDLES = "2.3"
HOST_STEP_CONSUMER = "2.4"
