#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of the status page anew, which the documentation and the README show.

The test that looks at the page makes them, in an environment with the project and the files of
requirements, and with chromium and chromium-driver.
"""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURES = ROOT / "doc" / "source" / "images"
TESTS = ROOT / "cyborg" / "tests" / "functional" / "status_page" / "test_views.py"

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    os.environ["CYBORG_TEST_PICTURES"] = str(PICTURES)
    sys.exit(pytest.main(["-q", "-W", "ignore", "-k", "pictures", str(TESTS)]))
