# SPDX-License-Identifier: Apache-2.0
"""Two conductors and several agents, each a process, that are stopped, killed and cut off while
cards are programmed and have guests.
"""
