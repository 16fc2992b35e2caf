# SPDX-License-Identifier: Apache-2.0
"""Lines of the log that are Cyborg's own."""

from __future__ import annotations

import logging

import pytest


def ours_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The lines of Cyborg: a library may still speak of a broker that an earlier test has ended."""
    return [each for each in caplog.records if each.name.partition(".")[0] == "cyborg"]
