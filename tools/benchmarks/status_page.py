#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long each view of the status page takes in a browser, and how many calls it makes.

    eval "$(tools/services.sh env)"; tools/benchmarks/status_page.py [-k sqlite]

On each database there are 1,000 devices with 64,000 attach handles, of which 50,000 are given away.
Exit status 1 where a view takes two seconds.
"""

from __future__ import annotations

import pathlib
import sys
import time

import plans
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg.db import models
from cyborg.tests import scene
from cyborg.tests.browser import Browser

FLEET = plans.Size(hosts=125, devices=8, handles=64, given=50)
HOST = f"host-{plans.FIRST_ID + 50}"
VIEWS = ["", "devices", f"devices?hostname={HOST}", "requests", f"requests?hostname={HOST}"]
VIEWS += ["requests?state=BindFailed", "allocations", "operations", "pools", "stuck"]
MOST = 2.0

pytest_generate_tests = plans.pytest_generate_tests
database_kind = plans.database_kind


@pytest.mark.makes_up_rows
def test_each_view_is_soon_there(
    conf: cfg.ConfigOpts, database: sa.Engine, tmp_path: pathlib.Path
) -> None:
    """Fill the database, and open each view twice: once with all that has to be loaded first."""
    plans.fill(database, FLEET)
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("status_page", override=True, group="api")
    with database.connect() as connection:
        uuid = connection.scalar(sa.select(models.Device.uuid).limit(1))
    browser, took = Browser(tmp_path), {}
    try:
        with scene.serving(conf) as url:
            browser.reset(url.removesuffix("/v2"))
            for view in [*VIEWS, f"device?uuid={uuid}"]:
                browser.asked()
                began = time.perf_counter()
                browser.open(view)
                took[view] = time.perf_counter() - began
                calls = sum(path.startswith("/v2/") for path in browser.asked())
                print(f"{database.dialect.name:12} {took[view]:5.2f} s {calls:3} calls  /{view}")
    finally:
        browser.driver.quit()
    assert max(took.values()) < MOST


if __name__ == "__main__":
    options = ["-q", "-s", "-p", "cyborg.tests.conftest", "-p", "no:cacheprovider", "-W", "ignore"]
    sys.exit(pytest.main([*options, __file__, *sys.argv[1:]]))
