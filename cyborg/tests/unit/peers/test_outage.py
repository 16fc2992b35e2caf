# SPDX-License-Identifier: Apache-2.0
"""An outage is told once when it begins and once when it ends, whatever was under way then."""

from __future__ import annotations

import time

import pytest

from cyborg.db import outage


def test_what_was_under_way_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = outage.Outage()

    def said() -> list[str]:
        found = [record.getMessage().partition(";")[0] for record in caplog.records]
        caplog.clear()
        return found

    before = time.monotonic()
    one.end(time.monotonic())
    one.begin(before)
    assert said() == []
    one.begin(time.monotonic())
    assert said() == ["The database cannot be reached"]
    one.end(before)
    one.begin(time.monotonic())
    assert said() == []
    during = time.monotonic()
    one.end(time.monotonic())
    assert said() == ["The database answers again"]
    one.begin(during)
    assert said() == []
    one.begin(time.monotonic())
    assert said() == ["The database cannot be reached"]
