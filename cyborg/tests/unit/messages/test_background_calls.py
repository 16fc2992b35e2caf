# SPDX-License-Identifier: Apache-2.0
"""Calls that may hang, and several threads that ask whether one has ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent import futures

import pytest

from cyborg.agent.background_calls import BackgroundCall


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient_threads")
def test_a_call_that_has_ended_hangs_for_nobody_who_asks() -> None:
    call = BackgroundCall("one", lambda: 1)
    assert not call.done(0)
    call.run()
    with futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(lambda: all(call.done(0) for _ in range(20_000))) for _ in range(4)]
        assert all(each.result() for each in asked)
