# SPDX-License-Identifier: Apache-2.0
"""The RPC methods of the conductor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from oslo_config import cfg

from cyborg import metrics, rpc
from cyborg.inventory import report as inventory_report

LOG = logging.getLogger(__name__)


class ConductorEndpoint:
    """The methods of topic ``cyborg-conductor``."""

    def __init__(self, conf: cfg.ConfigOpts, kick: Callable[[], None]) -> None:
        self._conf = conf
        self._kick = kick

    def report(self, context: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Apply the report of one host."""
        with metrics.observed(metrics.REPORT_SECONDS, outcome="failed") as labels:
            labels["outcome"] = inventory_report.apply_report(
                rpc.HostReport.from_wire(report), self._conf.conductor.max_gone_share
            )
        self._kick()

    def kick(self, context: Mapping[str, Any]) -> None:
        """Look for work now."""
        self._kick()
