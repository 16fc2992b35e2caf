# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of profiles."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg.tests.mounted_api import Api


@pytest.fixture
def api(conf: cfg.ConfigOpts, database: sa.Engine) -> Api:
    conf.set_override("auth_strategy", "noauth", group="api")
    return Api(conf)
