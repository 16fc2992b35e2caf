# SPDX-License-Identifier: Apache-2.0
"""Listens to Nova, and reports function misses: servers for which no host had a free slot.

Nova asks for no accelerator before it has a host, so function pools learn nothing of such a server.
Nova announces it, though, as an error of ``build_instances`` with the flavor. What is lost here
costs a pool one hint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import oslo_messaging as messaging
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg.common.microversion import FIRST
from cyborg.nova import PROFILE_OF_FLAVOR
from cyborg.peers import clients
from cyborg.rpc import intake

LOG = logging.getLogger(__name__)

GROUP = "nova_watcher"
EVENT = "compute_task.build_instances.error"
#: What nova-scheduler raises if no host has room, as it arrives in nova-conductor.
NO_VALID_HOST = ("NoValidHost", "NoValidHost_Remote")
_CLOSE_GRACE = 2.0


class NovaEndpoint:
    """The endpoint that is called with each notification of Nova's."""

    filter_rule = messaging.NotificationFilter(event_type=EVENT)

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf

    def error(
        self,
        _context: Mapping[str, Any],
        _publisher: str,
        _event: str,
        payload: Mapping[str, Any],
        _metadata: Mapping[str, Any],
    ) -> None:
        """Report the misses of a server that could not be built."""
        profile = missed_profile(payload)
        if profile is not None:
            report(self._conf, profile)


def missed_profile(payload: Mapping[str, Any]) -> str | None:
    """The device profile for which no host had room, by a notification; None if it names none."""
    data = _data(payload)
    if _data(data.get("reason")).get("exception") not in NO_VALID_HOST:
        return None
    flavor = _data(_data(data.get("request_spec")).get("flavor"))
    specs = flavor.get("extra_specs")
    profile = specs.get(PROFILE_OF_FLAVOR) if isinstance(specs, Mapping) else None
    return profile if isinstance(profile, str) and profile else None


def _data(notified: Any) -> Mapping[str, Any]:
    """The fields of an object in one of Nova's notifications."""
    found = notified.get("nova_object.data") if isinstance(notified, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def report(conf: cfg.ConfigOpts, profile: str) -> None:
    """Report the misses of a device profile; a failure is logged."""
    try:
        answer = clients.proxy(conf, GROUP).post(
            "/function_misses", json={"device_profile_name": profile}, microversion=FIRST
        )
    except ka_exc.ClientException as exc:
        LOG.warning("A miss of device profile %s is not reported: %s", profile, exc)
        return
    if answer.status_code == HTTPStatus.ACCEPTED:
        LOG.info("No host had room for device profile %s; the miss is reported", profile)
    elif answer.status_code in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}:
        # It asks for no function, or is gone.
        LOG.debug("Device profile %s has no misses: %s", profile, answer.text)
    else:
        LOG.warning(
            "A miss of device profile %s is not reported: the API answers %s",
            profile, answer.status_code,
        )  # fmt: skip


class Watcher:
    """The listener of one process. Each notification goes to one of the watchers."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        intake.install(conf)
        self._transport = messaging.get_notification_transport(
            conf, url=conf[GROUP].transport_url
        )
        self._listener: Any = None

    def start(self) -> None:
        """Begin to listen in a thread: a broker that is down would hold the caller."""
        threading.Thread(target=self._listen, name="nova-watcher", daemon=True).start()

    def _listen(self) -> None:
        options = self._conf[GROUP]
        target = messaging.Target(topic=options.topic, exchange=options.exchange)
        # The pool gets every notification besides those who listen to the topic already.
        self._listener = messaging.get_notification_listener(
            self._transport, [target], [NovaEndpoint(self._conf)], executor="threading",
            pool=options.pool, allow_requeue=False,
        )  # fmt: skip
        self._listener.start()
        LOG.info("Serving: listening to %s of Nova", options.topic)

    def stop(self) -> None:
        """Listen no more, and do not wait long for a broker that is down."""
        closing = threading.Thread(target=self._close, name="nova-watcher-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_GRACE)

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener.wait()
        self._transport.cleanup()
