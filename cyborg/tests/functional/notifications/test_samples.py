# SPDX-License-Identifier: Apache-2.0
"""The samples of notifications in the documentation are what listeners hear."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, liveness, profiles, quotas
from cyborg.arqs import binding, service
from cyborg.db import models
from cyborg.function_pools import pools
from cyborg.handles import giving_up, release
from cyborg.hosts import draining, flags, removal
from cyborg.policy import context
from cyborg.programming import cancellation, operations, program
from cyborg.tests import boots, engine, hosts, listening, moving
from cyborg.tests.fpgas import AES, pool_spec
from cyborg.tests.listening import Heard
from cyborg.tests.service import until

DOCUMENTATION = pathlib.Path(__file__).parents[4] / "doc"
SAMPLES = DOCUMENTATION / "notification_samples"
PAGE = DOCUMENTATION / "source" / "admin" / "notification-samples.inc"

pytestmark = pytest.mark.usefixtures("database")


def shape(document: Any) -> Any:
    """The keys of a document and the types of its values; a map of names has no keys of its own."""
    if isinstance(document, dict):
        return {key: shape(value) for key, value in document.items()}
    return type(document).__name__


def cause_everything(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> None:
    """Make each event happen."""
    for bus in ("41", "42"):
        hosts.apply(moving.card(bus, "S1"))
    card = hosts.deployable(boots.NAME, range(2))
    hosts.apply(hosts.device("a", card))
    first, second, failed = boots.arqs(ctx, 3)
    boots.bind(ctx, [first, second, failed], models.new_uuid())
    engine.drain(conf)
    hosts.apply(hosts.device("a", card, unhealthy="uncorrectable memory errors"))
    hosts.apply(hosts.device("a", card))
    hosts.apply()
    hosts.apply(hosts.device("a", card))
    binding.request_changes(ctx, {}, [first])
    release.delete_arqs(ctx, [first, failed])
    release.delete_arqs(ctx, [second])
    with db.reader() as session:
        device = session.scalars(sa.select(models.Device.uuid)).one()
        host = session.scalars(sa.select(models.Host.uuid)).one()
    flags.disable_device(device, "It rattles")
    flags.enable_device(device)
    flags.taint_device(device, "Firmware under test")
    flags.untaint_device(device)
    draining.drain("host-1", "A new fan", 1)
    draining.undrain("host-1", 1)
    draining.taint("host-1", "Firmware under test", 1)
    draining.untaint("host-1", 1)
    (given_up,) = boots.arqs(ctx)
    boots.bind(ctx, [given_up], models.new_uuid())
    giving_up.release_arq(ctx, given_up, force=True)
    cause_what_users_ask_for(ctx)
    hosts.apply(errors={"other_driver": "RuntimeError: the card does not answer"})
    overdue(conf)
    hosts.apply()
    overdue(conf)
    removal.remove_host(host, force=False)


def cause_what_users_ask_for(ctx: context.RequestContext) -> None:
    """Profiles, pools, operations and a quota."""
    named = profiles.ProfileName("name", "aes")
    group = {"resources:FPGA": "1"}
    fields = {"name": "aes", "groups": [group], "description": None}
    profiles.create_profile(**fields)  # type: ignore[arg-type]
    private = {"visibility": profiles.PRIVATE, "projects": ["project-1"], "extra": {"owner": "ml"}}
    profiles.replace_profile(ctx, named, **fields, **private)  # type: ignore[arg-type]
    for enabled in (False, True):
        profiles.enable_profile(ctx, named, enabled=enabled)
    with pytest.raises(quotas.QuotaExceeded):
        service.create(ctx, "aes", {quotas.REQUESTS: 0})
    profiles.delete_profiles(ctx, [named])
    spec = pool_spec(free=1)
    uuid = pools.create_pool(spec).uuid
    pools.replace_pool(uuid, spec)
    pools.delete_pool(uuid)
    hosts.apply(hosts.card("a", range(2), program_mode="dynamic"))
    with db.reader() as session:
        deployable = session.scalars(sa.select(models.Deployable.uuid)).one()
    what = program.Program(function_id=AES)
    for _ in range(2):
        asked = operations.ask(deployable, what, "user somebody")
        cancellation.cancel(asked.uuid, "user somebody")
    with db.writer() as session:
        db.update(session, models.Deployable, function_id=AES, function_plain=program.plain(AES))
    operations.ask(deployable, what, "user somebody")
    hosts.apply(hosts.card("a", range(2)))


def overdue(conf: cfg.ConfigOpts) -> None:
    """Let the host not have reported for long."""
    with db.writer() as session:
        db.update(session, models.Host, last_seen_ms=0)
    liveness.mark_hosts_down(conf)


@pytest.fixture
def messages(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> Iterator[dict[str, Heard]]:
    """One message of each event there is."""
    with listening.ear(conf, "memory") as ear:
        cause_everything(ctx, conf)
        listening.send(conf)
        expected = {event.name for event in listening.EVENTS}
        until(lambda: expected <= set(ear.events))
        yield {one.event: one for one in ear.heard}


def test_each_event_is_as_its_sample_which_is_shown(messages: dict[str, Heard]) -> None:
    page = PAGE.read_text()
    samples = {path.stem: json.loads(path.read_text()) for path in SAMPLES.glob("*.json")}
    assert samples.keys() == {event.name for event in listening.EVENTS} == messages.keys()
    for event, heard in messages.items():
        said = message(heard)
        sample = samples[event]
        assert shape(sample) == shape(said), event
        assert f"notification_samples/{event}.json" in page
        for key in ("event_type", "priority", "publisher_id"):
            assert sample[key] == said[key]
        for key in said["payload"].keys() - {"cyborg_object.data"}:
            assert sample["payload"][key] == said["payload"][key]


def message(heard: Heard) -> dict[str, Any]:
    """The whole of a message."""
    return {
        "event_type": heard.event,
        "priority": heard.priority,
        "publisher_id": heard.publisher,
        **heard.metadata,
        "payload": heard.payload,
    }
