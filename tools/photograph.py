#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of browsers anew, which the documentation and the README show.

The tests that look at the pages make them, in an environment with the project and the files of
requirements, and with chromium and chromium-driver. With tools/dashboard/requirements.txt it makes
those of the dashboard too.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURES = ROOT / "doc" / "source" / "images"
TESTS = [ROOT / "cyborg" / "tests" / "functional" / "status_page" / "test_views.py"]

if __name__ == "__main__":
    if importlib.util.find_spec("horizon"):
        TESTS.append(ROOT / "cyborg_dashboard" / "tests" / "test_browser.py")
    PICTURES.mkdir(exist_ok=True)
    os.environ["CYBORG_TEST_PICTURES"] = str(PICTURES)
    sys.exit(pytest.main(["-q", "-W", "ignore", "-k", "pictures", *map(str, TESTS)]))
