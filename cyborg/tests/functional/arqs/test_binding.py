# SPDX-License-Identifier: Apache-2.0
"""Binding and release, from the recorded request to the event, on every database."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import db, profiles
from cyborg.arqs import binding, service
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.hosts import flags
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.policy.enforcer import Enforcer
from cyborg.tests import boots, engine, hosts
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.novasink import NovaSink

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("mode", [None, "dynamic"])
def test_the_budget_of_a_bind(
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    sink: NovaSink,
    count_sql: CountSql,
    count: int,
    mode: str | None,
) -> None:
    """By the API alone, and by a conductor."""
    hosts.apply(hosts.card(program_mode=mode))
    engine.drain(conf)
    uuids, instance = boots.arqs(ctx, count), models.new_uuid()
    with count_sql() as counter:
        boots.bind(ctx, uuids, instance)
        engine.drain(conf)
    # Four of them are for the one POST to Nova, and the last look for work finds nothing. A
    # conductor that binds may look for the results before, too. One writes the history. However
    # many ARQs a deployable gives handles to, that is written at once.
    limit = 13 if mode is None else 25
    assert len(counter.statements) <= limit, counter.statements
    assert len(sink.requests) == 1


def test_creating_arqs_costs_at_most_four_statements(
    ctx: context.RequestContext, count_sql: CountSql
) -> None:
    groups = [dict(boots.GROUP)] * 6
    profiles.create_profile(name="six", groups=groups, description=None, uuid=None)
    with count_sql() as counter:
        service.create(ctx, "six")
    assert len(counter.statements) <= 4, counter.statements


def test_other_values_for_a_bound_arq_are_refused(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.card())
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    with pytest.raises(errors.Invalid, match="unbind it first"):
        boots.bind(ctx, uuids, models.new_uuid())


#: What is wrong with a target, and how it is refused.
WRONG: tuple[tuple[dict[str, str], type[errors.CyborgError], str], ...] = (
    ({"hostname": "elsewhere"}, errors.Invalid, "hostname"),
    ({"device_rp_uuid": models.new_uuid()}, errors.NotFound, "Deployable not found"),
    ({"device_rp_uuid": provider_uuid("host-1_gpu")}, errors.Invalid, "it offers PGPU"),
    ({"device_rp_uuid": provider_uuid("host-1_other")}, errors.Invalid, "CUSTOM_FAKE_DEVICE"),
    ({"device_rp_uuid": provider_uuid("host-1_off")}, errors.Conflict, "disabled"),
    ({"device_rp_uuid": provider_uuid("host-2_a")}, errors.Invalid, "not on that host"),
)


def test_a_wrong_target_is_refused_and_nothing_is_written(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(
        hosts.card("a"),
        hosts.card("gpu", resource_class="PGPU"),
        hosts.card("other", traits=()),
        hosts.card("off"),
    )
    hosts.apply(hosts.device("a", hosts.deployable("host-2_a")), host="host-2")
    (off,) = (row.device.uuid for row in hosts.deployables() if row.name == "host-1_off")
    flags.disable_device(off)
    engine.drain(conf)
    uuids, instance = boots.arqs(ctx, 2), models.new_uuid()
    for changes, error, sentence in WRONG:
        targets = {uuids[0]: boots.target(instance), uuids[1]: boots.target(instance, **changes)}
        with pytest.raises(error, match=sentence):
            binding.request_changes(ctx, targets, [])
        assert set(boots.states(ctx).values()) == {models.INITIAL}
        assert engine.pending() == {}


def test_an_unknown_arq_in_a_batch_binds_none(ctx: context.RequestContext) -> None:
    hosts.apply(hosts.card())
    uuids = boots.arqs(ctx)
    with pytest.raises(errors.NotFound, match="ExtArq not found"):
        boots.bind(ctx, [*uuids, models.new_uuid()], models.new_uuid())
    assert set(boots.states(ctx).values()) == {models.INITIAL}


def test_unbind_frees_the_handle_for_the_next(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.card("a", range(1)))
    first, second = boots.arqs(ctx, 2)
    boots.bind(ctx, [first], models.new_uuid())
    engine.drain(conf)
    binding.request_changes(ctx, {}, [first])
    binding.request_changes(ctx, {}, [first])
    boots.bind(ctx, [second], models.new_uuid())
    engine.drain(conf)
    arqs = {arq.uuid: arq for arq in service.list_arqs(ctx)}
    assert (arqs[first].state, arqs[first].consumer_uuid) == (models.UNBOUND, None)
    assert arqs[first].hostname is arqs[first].device_rp_uuid is None
    assert arqs[second].state == models.BOUND
    release.delete_arqs(ctx, [second])
    boots.bind(ctx, [first], models.new_uuid())
    engine.drain(conf)
    assert boots.states(ctx) == {first: models.BOUND}


def test_deleting_some_of_which_one_is_unknown_deletes_the_others(
    ctx: context.RequestContext,
) -> None:
    uuids = boots.arqs(ctx, 2)
    with pytest.raises(errors.NotFound):
        release.delete_arqs(ctx, [*uuids, models.new_uuid()])
    assert boots.states(ctx) == {}


def test_a_bound_arq_is_not_deleted_without_a_service_token(
    ctx: context.RequestContext, enforcer: Enforcer, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.card())
    bound, free = boots.arqs(ctx, 2)
    boots.bind(ctx, [bound], models.new_uuid())
    owner = context.RequestContext(enforcer=enforcer, project_id="project-1", roles=["member"])
    with pytest.raises(errors.Forbidden, match="Use the Compute"):
        release.delete_arqs(owner, [free, bound])
    with pytest.raises(errors.Forbidden, match="requires a service token"):
        release.delete_instance_arqs(owner, models.new_uuid())
    with pytest.raises(errors.Forbidden, match="requires a service token"):
        boots.bind(owner, [free], models.new_uuid())
    assert set(boots.states(ctx)) == {bound, free}


def test_another_projects_arqs_do_not_exist(
    ctx: context.RequestContext, tenant: context.RequestContext
) -> None:
    hosts.apply(hosts.card())
    uuids, instance = boots.arqs(ctx), models.new_uuid()
    assert service.list_arqs(tenant) == []
    for attempt in (
        lambda: service.get_arq(tenant, uuids[0]),
        lambda: boots.bind(tenant, uuids, instance),
        lambda: release.delete_arqs(tenant, uuids),
    ):
        with pytest.raises(errors.NotFound):
            attempt()
    boots.bind(ctx, uuids, instance)
    release.delete_instance_arqs(tenant, instance)
    assert boots.states(ctx) == {uuids[0]: models.BOUND}


def test_a_device_disabled_after_the_request_still_serves_it(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    with db.writer() as session:
        db.update(session, models.Device, status="maintaining")
    engine.drain(conf)
    assert boots.states(ctx) == {uuids[0]: models.BOUND}


@pytest.mark.parametrize(
    ("later", "public", "private"),
    [
        (None, "is gone from its host.", None),
        ({"resource_class": "CUSTOM_B"}, "changed.", "changed: it offers CUSTOM_B, not FPGA."),
        ({"unhealthy": "It is hot"}, "is unhealthy.", "is unhealthy: It is hot."),
    ],
    ids=["gone", "class", "unhealthy"],
)
def test_what_changes_before_the_bind_fails_it(
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    sink: NovaSink,
    later: dict[str, Any] | None,
    public: str,
    private: str | None,
) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    hosts.apply(*([] if later is None else [hosts.card(program_mode="dynamic", **later)]))
    engine.drain(conf)
    (arq,) = service.list_arqs(ctx)
    assert (arq.state, arq.handle_uuid) == (models.BIND_FAILED, None)
    assert arq.state_reason == f"Provider {boots.RP} {public}"
    assert arq.private_reason == (private and f"Provider {boots.RP} {private}")
    assert sink.events == {uuids[0]: "failed"}


def test_resolved_is_asked_for(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids, instance = boots.arqs(ctx, 2), models.new_uuid()
    boots.bind(ctx, uuids, instance)
    with pytest.raises(errors.Unresolved):
        service.list_arqs(ctx, instance_uuid=instance, only_resolved=True)
    assert service.list_arqs(ctx, only_resolved=True) == []
    engine.drain(conf)
    found = service.list_arqs(ctx, instance_uuid=instance, only_resolved=True)
    assert {arq.uuid for arq in found} == set(uuids)
