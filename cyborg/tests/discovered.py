# SPDX-License-Identifier: Apache-2.0
"""Passes of discovery until something is found."""

from __future__ import annotations

import time
from collections.abc import Callable

from cyborg.agent import discovery

PATIENCE = 60


def until(
    agent: discovery.Discovery, condition: Callable[[discovery.Findings], bool]
) -> discovery.Findings:
    """Make passes until one is so; on a busy machine any driver may be slow once."""
    deadline = time.monotonic() + PATIENCE
    while not condition(found := agent.run()):
        assert time.monotonic() < deadline
    return found
