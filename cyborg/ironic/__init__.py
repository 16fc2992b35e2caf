# SPDX-License-Identifier: Apache-2.0
"""Bare-metal nodes as Ironic knows them: devices of hosts that have no agent.

Such a device has no deployable, so nothing of it can be offered, bound or programmed. What the
firmware of a node is, only Ironic says.
"""
