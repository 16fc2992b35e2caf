# SPDX-License-Identifier: Apache-2.0
"""A weigher for nova-scheduler: hosts that serve a device profile best come first.

It runs in Nova's process and with Nova's options. It asks the API for the candidates of the device
profile of the flavor. If there is no answer in time, it has no opinion, and the boot goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import nova.conf
from keystoneauth1 import adapter
from keystoneauth1 import exceptions as ka_exc
from keystoneauth1 import loading as ka_loading
from nova.scheduler import utils as scheduler_utils
from nova.scheduler import weights
from oslo_config import cfg

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF
GROUP = "cyborg_weigher"
#: Nova's groups: how the API is reached, and the user that asks.
_ENDPOINT, _USER = "cyborg", "service_user"
#: The first microversion in which candidates have a rank.
_MICROVERSION = "2.20"

OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "multiplier",
        default=1.0,
        help="How much this weigher counts beside Nova's others. An aggregate of hosts may have "
        "its own, as the metadata accelerator_weight_multiplier. 0 asks nothing.",
    ),
    cfg.FloatOpt(
        "timeout",
        default=2.0,
        min=0.1,
        help="Seconds to wait for the accelerator API, for each request. Without an answer the "
        "hosts are equal.",
    ),
    cfg.IntOpt(
        "pause",
        default=30,
        min=0,
        help="Seconds during which the API is not asked again after it has not answered.",
    ),
]
CONF.register_opts(OPTS, group=GROUP)


class AcceleratorWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Weighs a host by the rank of its best candidate."""

    def __init__(self) -> None:
        self._adapter: adapter.Adapter | None = None
        self._asks_again_at = 0.0

    def weight_multiplier(self, host_state: Any) -> float:
        """How much the weight counts on a host."""
        multiplier: float = scheduler_utils.get_weight_multiplier(
            host_state, "accelerator_weight_multiplier", CONF[GROUP].multiplier
        )
        return multiplier

    def _weigh_object(self, _host_state: Any, _request_spec: Any) -> float:
        """Nothing: hosts are weighed together."""
        return 0.0

    def weigh_objects(self, weighed_obj_list: Sequence[Any], weight_properties: Any) -> list[float]:
        """The weight of each host, the greatest for the best; all 0 if nothing is known."""
        profile = _device_profile(weight_properties)
        found = self._candidates(profile) if profile and CONF[GROUP].multiplier else []
        ranks: dict[str, int] = {}
        for each in found:
            ranks.setdefault(each["hostname"], each["rank"])
        # A host without a candidate is behind all others.
        last = max(ranks.values(), default=-1) + 1
        nodes = [each.obj.nodename for each in weighed_obj_list]
        return [-float(ranks.get(node, last)) for node in nodes]

    def _candidates(self, profile: str) -> list[dict[str, Any]]:
        """The candidates of a device profile, as the API lists them; none if it does not answer."""
        if time.monotonic() < self._asks_again_at:
            return []
        try:
            self._adapter = self._adapter or _adapter()
            answer = self._adapter.get(
                f"/device_profiles/{profile}/candidates",
                microversion=_MICROVERSION,
                timeout=CONF[GROUP].timeout,
                raise_exc=True,
            )
            candidates: list[dict[str, Any]] = answer.json()["candidates"]
        except ka_exc.HttpError as exc:
            LOG.warning("No order of hosts for device profile %s: %s", profile, exc)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the boot goes on
            self._asks_again_at = time.monotonic() + CONF[GROUP].pause
            LOG.warning(
                "No order of hosts for device profile %s, nor for others in the next %s s: the "
                "accelerator API does not answer: %s", profile, CONF[GROUP].pause, exc,
            )  # fmt: skip
        else:
            return candidates
        return []


def _device_profile(request_spec: Any) -> str | None:
    """The device profile of the flavor that is asked for."""
    specs: dict[str, str] = request_spec.flavor.extra_specs or {}
    return specs.get("accel:device_profile")


def _adapter() -> adapter.Adapter:
    """The API as Nova's options describe it, for the user by which Nova is known as a service.

    The user of the boot may not see candidates, since they name hosts.
    """
    auth = ka_loading.load_auth_from_conf_options(CONF, _USER)
    session = ka_loading.load_session_from_conf_options(CONF, _ENDPOINT, auth=auth)
    session.timeout = CONF[GROUP].timeout
    return ka_loading.load_adapter_from_conf_options(
        CONF, _ENDPOINT, session=session, auth=auth, connect_retries=0, status_code_retries=0
    )
