# SPDX-License-Identifier: Apache-2.0
"""Events for Nova: the results of an instance's binds, read from its ARQs when they are sent."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import cast

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, nova, work
from cyborg.db import models
from cyborg.peers import clients

LOG = logging.getLogger(__name__)

#: Answers that no repetition changes: Nova has no such instance, or does not understand us.
_FINAL = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST})


def send(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Send one instance's resolved ARQs to Nova: the handler of ``nova-event/<instance>``.

    Nothing is sent while an ARQ is BindStarted and none has failed. The last one to be resolved, or
    to leave the instance, wants the event again, so that Nova gets one message for all.
    """
    events = _events(item.key)
    if not events:
        return
    item.checkpoint()
    if not clients.configured(conf, "nova"):
        for event in events:
            LOG.info(
                "Event %(name)s for instance %(server_uuid)s, ARQ %(tag)s: %(status)s "
                "(no [nova] auth_type, so only logged)",
                event,
            )
        return
    status, answers = nova.send_events(conf, events)
    _check_answer(conf, item, status, [answer.get("code", HTTPStatus.OK) for answer in answers])


_ARQ = cast(sa.Table, models.Arq.__table__).c
#: Made once, since making it takes longer than running it.
_ASKED = (
    sa.select(_ARQ.uuid, _ARQ.state)
    .where(_ARQ.consumer_uuid == sa.bindparam("instance"), _ARQ.state.in_(models.ASKED))
    .order_by(_ARQ.id)
)


def _events(consumer_uuid: str) -> list[dict[str, str]]:
    rows = db.rows(_ASKED, {"instance": consumer_uuid})
    found = {state for _, state in rows}
    if models.BIND_STARTED in found and models.BIND_FAILED not in found:
        return []
    return [
        nova.bound_event(consumer_uuid, uuid, bound=state == models.BOUND)
        for uuid, state in rows
        if state != models.BIND_STARTED
    ]


def _check_answer(conf: cfg.ConfigOpts, item: work.Item, status: int, codes: list[int]) -> None:
    """Return if Nova took the events or refused them for good.

    :raises TryLater: they are to be sent again
    """
    if status == HTTPStatus.UNPROCESSABLE_ENTITY or HTTPStatus.UNPROCESSABLE_ENTITY in codes:
        # Normal: the bind is faster than Nova's claim of the host. Nova also polls the ARQs.
        if item.taken_ms - item.wanted_ms < conf.bind_timeout * 1000:
            raise work.NotYet(f"Nova has no host for instance {item.key} yet")
        LOG.warning("Nova took no event for instance %s in time; it will ask", item.key)
    elif status in _FINAL or not _FINAL.isdisjoint(codes):
        said = ", ".join(str(code) for code in codes)
        LOG.warning("Nova refuses events for instance %s: %s %s", item.key, status, said)
    elif status >= HTTPStatus.BAD_REQUEST:
        raise work.TryLater(f"Nova answered {status} to the events of instance {item.key}")
    else:
        LOG.info("Nova accepted %d events for instance %s", len(codes), item.key)
