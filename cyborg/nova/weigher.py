# SPDX-License-Identifier: Apache-2.0
"""A weigher for nova-scheduler: hosts that serve a device profile best come first.

It runs in Nova's process and with Nova's options. It asks the API for the candidates of the device
profile of the flavor. If there is no answer in time, it has no opinion, and the boot goes on. A
filter does for one host what is not for the choice of a host: the best accelerators come first.
"""

from __future__ import annotations

import contextlib
import http
import json
import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import nova.conf
from keystoneauth1 import adapter
from keystoneauth1 import loading as ka_loading
from nova.scheduler import filters, weights
from nova.scheduler import utils as scheduler_utils
from oslo_config import cfg

from cyborg.common.microversion import FIRST

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF
GROUP = "cyborg_weigher"
#: Nova's groups: how the API is reached, and the user that asks.
_ENDPOINT, _USER = "cyborg", "service_user"
#: How Nova calls the groups of a flavor's device profile, before their numbers.
_GROUP = "device_profile_"
#: The attribute in which a request spec keeps the order of the server that it is for.
_KEPT = "_cyborg_order"
#: The bytes of an answer that are read: of a longer one nothing is believed.
_MOST = 16 << 20

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
        help="Seconds to wait for the accelerator API, Keystone included. Without an answer the "
        "hosts are equal, and what may be claimed on a host stays in Nova's order.",
    ),
    cfg.IntOpt(
        "pause",
        default=30,
        min=0,
        help="Seconds during which the API is not asked again after it has not answered.",
    ),
]
CONF.register_opts(OPTS, group=GROUP)


class _Order:
    """The order of a device profile's candidates; empty if it is not known."""

    def __init__(self, text: bytes = b'{"candidates": []}') -> None:
        """``text`` is the API's answer, the best candidate first."""
        #: The best rank on a host, by its root provider.
        self.ranks: dict[str, int] = {}
        #: The position of each candidate, by the provider of each group as Nova names the groups.
        self.positions: dict[frozenset[tuple[str, str]], int] = {}
        for position, each in enumerate(json.loads(text)["candidates"]):
            self.ranks.setdefault(str(each["hostname"]), int(each["rank"]))
            groups = ((f"{_GROUP}{one['group']}", str(one["rp_uuid"])) for one in each["groups"])
            self.positions.setdefault(frozenset(groups), position)

    def position(self, claim: Mapping[str, Any]) -> int:
        """The position of what Nova may claim; behind all others if it is no candidate."""
        groups = ((name.lstrip("_"), of[0]) for name, of in claim["mappings"].items())
        named = frozenset(each for each in groups if re.fullmatch(_GROUP + r"\d+", each[0]))
        return self.positions.get(named, len(self.positions))


class _OrderAsker:
    """Asks the API for the order. It never raises, and waits for no more than the time-out."""

    def __init__(self) -> None:
        self._adapter: adapter.Adapter | None = None
        self._asks_again_at = 0.0
        self._late = threading.Thread()

    def _sort(self, hosts: Iterable[Any], spec: Any) -> _Order:
        """Sort what Nova may claim on each host, as it claims the first; return the order."""
        try:
            # The filter and the weigher ask once for a server.
            server = (spec.instance_uuid if "instance_uuid" in spec else None) or object()
            kept, order = getattr(spec, _KEPT, (None, _Order()))
            if kept != server:
                order = self._ask(_device_profile(spec))
                setattr(spec, _KEPT, (server, order))
            for host in hosts if order.positions else ():
                host.allocation_candidates.sort(key=order.position)
        except Exception:
            LOG.exception("No order of hosts and accelerators.")
            return _Order()
        return order

    def _ask(self, profile: str | None) -> _Order:
        silent = time.monotonic() < self._asks_again_at or self._late.is_alive()
        if silent or not profile or not CONF[GROUP].multiplier:
            return _Order()
        found: list[_Order] = []
        asking = threading.Thread(target=self._read, args=(profile, found), daemon=True)
        asking.start()
        asking.join(CONF[GROUP].timeout)
        if asking.is_alive():
            # Nobody asks until it has ended, so that there is one such thread.
            self._late = asking
            self._pause(profile, "it takes too long")
        return found[0] if found else _Order()

    def _read(self, profile: str, found: list[_Order]) -> None:
        """Ask for the candidates of a device profile, and add their order to ``found``."""
        try:
            self._adapter = self._adapter or _adapter()
            answer = self._adapter.get(
                f"/device_profiles/{profile}/candidates",
                microversion=FIRST,
                timeout=CONF[GROUP].timeout,
                headers={"Accept-Encoding": "identity"},
                raise_exc=False,
                redirect=False,
                stream=True,
            )
            with contextlib.closing(answer):
                if answer.status_code == http.HTTPStatus.OK:
                    found.append(_Order(answer.raw.read(_MOST)))
                else:
                    LOG.warning("No order of hosts for device profile %s: %s", profile, answer)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the boot goes on
            self._pause(profile, exc)

    def _pause(self, profile: str, why: object) -> None:
        self._asks_again_at = time.monotonic() + CONF[GROUP].pause
        LOG.warning(
            "No order of hosts for device profile %s, nor for others in the next %s s: the "
            "accelerator API does not answer: %s", profile, CONF[GROUP].pause, why,
        )  # fmt: skip


class AcceleratorWeigher(_OrderAsker, weights.BaseHostWeigher):  # type: ignore[misc]
    """Weighs a host by the rank of its best candidate, and sorts what may be claimed there."""

    def weight_multiplier(self, host_state: Any) -> float:
        """The factor by which the weight counts on a host."""
        multiplier: float = scheduler_utils.get_weight_multiplier(
            host_state, "accelerator_weight_multiplier", CONF[GROUP].multiplier
        )
        return multiplier

    def _weigh_object(self, _host_state: Any, _request_spec: Any) -> float:
        """Nothing: hosts are weighed together."""
        return 0.0

    def weigh_objects(self, weighed_obj_list: Sequence[Any], weight_properties: Any) -> list[float]:
        """The weight of each host, the greatest for the best; all 0 if nothing is known."""
        ranks = self._sort((each.obj for each in weighed_obj_list), weight_properties).ranks
        # A host without a candidate is behind all others.
        last = max(ranks.values(), default=-1) + 1
        nodes = [each.obj.nodename for each in weighed_obj_list]
        return [-float(ranks.get(node, last)) for node in nodes]


class AcceleratorFilter(_OrderAsker, filters.BaseHostFilter):  # type: ignore[misc]
    """Lets every host pass, and sorts what may be claimed there; a single host is not weighed."""

    def filter_all(self, filter_obj_list: Iterable[Any], spec_obj: Any) -> list[Any]:
        """All hosts."""
        hosts = list(filter_obj_list)
        self._sort(hosts, spec_obj)
        return hosts


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
