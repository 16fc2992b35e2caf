# SPDX-License-Identifier: Apache-2.0
"""Cyborg's API, as the user of ``[kube]`` reaches it."""

from __future__ import annotations

from oslo_config import cfg

from cyborg.peers import accelerators
from cyborg.peers.accelerators import ApiFailed

__all__ = ["CONSUMER_TYPE", "GROUP", "ApiFailed", "KubeApi"]

GROUP = "kube"
#: What each consumer of ours is, with the name of its host as name.
CONSUMER_TYPE = "KUBERNETES"


class KubeApi(accelerators.Api):
    """The accelerator API."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf, GROUP)
