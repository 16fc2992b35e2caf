# SPDX-License-Identifier: Apache-2.0
"""Versions of the messages between the services."""

#: What this release speaks. 2.1 added ``program`` to the agent.
VERSION = "2.1"
#: What a receiver must speak at least, and what an agent must speak to be sent ``program``.
LEAST = "2.0"
PROGRAM = "2.1"
