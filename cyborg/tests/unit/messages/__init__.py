# SPDX-License-Identifier: Apache-2.0
"""What crosses the wire, and calls of the agent."""
