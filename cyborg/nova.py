# SPDX-License-Identifier: Apache-2.0
"""Nova's side of a bind: the external events API, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from cyborg import clients

LOG = logging.getLogger(__name__)

EVENT = "accelerator-request-bound"

#: The first compute API microversion that knows the event.
_MICROVERSION = "2.82"


def bound_event(instance_uuid: str, arq_uuid: str, *, bound: bool) -> dict[str, str]:
    """One event of the body of ``POST /os-server-external-events``."""
    return {
        "name": EVENT,
        "server_uuid": instance_uuid,
        "tag": arq_uuid,
        "status": "completed" if bound else "failed",
    }


def send_events(
    conf: cfg.ConfigOpts, events: Sequence[dict[str, str]]
) -> tuple[int, list[dict[str, Any]]]:
    """Offer ``events`` to Nova in one request.

    :returns: the HTTP status, and Nova's answer to each event (with its ``code``) where it has one
    :raises keystoneauth1.exceptions.ClientException: Nova or Keystone cannot be reached
    """
    response = clients.adapter(conf, "nova").post(
        "/os-server-external-events",
        json={"events": list(events)},
        microversion=_MICROVERSION,
        raise_exc=False,
    )
    answers = response.json().get("events", []) if response.status_code in {200, 207} else []
    return response.status_code, answers
