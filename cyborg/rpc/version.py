# SPDX-License-Identifier: Apache-2.0
"""Versions of the messages between the services."""

#: What this release speaks. 2.1 added ``program`` to the agent, 2.2 ``report_unchanged`` to the
#: conductor.
VERSION = "2.2"
#: What a receiver must speak at least, and what it must speak to be sent ``program`` or
#: ``report_unchanged``.
LEAST = "2.0"
PROGRAM = "2.1"
REPORT_UNCHANGED = "2.2"
