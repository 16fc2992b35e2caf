# SPDX-License-Identifier: Apache-2.0
"""The fixture of the tests of function pools."""

from __future__ import annotations

import pytest

from cyborg.policy import context
from cyborg.tests.fpgas import Fpgas
from cyborg.tests.service import Site


@pytest.fixture
def cloud(site: Site, ctx: context.RequestContext) -> Fpgas:
    """Hosts with FPGAs whose operations a test ends."""
    return Fpgas(site, ctx)
