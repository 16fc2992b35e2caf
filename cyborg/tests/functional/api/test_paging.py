# SPDX-License-Identifier: Apache-2.0
"""Pages of a list add up to the list, in every order and on every database."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, profiles
from cyborg.arqs import service
from cyborg.common import errors
from cyborg.db import models, paging
from cyborg.inventory import attributes, query
from cyborg.policy import context
from cyborg.tests import hosts
from cyborg.tests.counted_statements import SqlCounter

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]
List = Callable[[paging.Page], Sequence[Any]]

pytestmark = [pytest.mark.every_database, pytest.mark.makes_up_rows]

_ARQ_KEYS = ("id", "uuid", "state", "hostname", "instance_uuid", "project_id", "updated_at")
_MOMENT = datetime.datetime(2030, 1, 1, 12, 0, 0, 123456)  # noqa: DTZ001 - as it is stored


@pytest.fixture(autouse=True)
def rows(database: sa.Engine) -> None:
    """ARQs with many equal values and nulls, two hosts' hardware, and profiles."""
    hosts.apply(hosts.card("a"), hosts.card("b", resource_class="PGPU"))
    for name in "cab":
        profiles.create_profile(name=name, groups=[{}], description=None, uuid=None)
    arqs = [
        models.Arq(
            project_id="project-1",
            state=state,
            device_profile_name="p",
            group={},
            hostname=hostname,
            consumer_uuid=instance,
            updated_at=None if number % 3 else _MOMENT + datetime.timedelta(seconds=number % 2),
        )
        for number, (state, hostname, instance) in enumerate(
            (state, hostname, instance)
            for state in (models.INITIAL, models.BOUND)
            for hostname in (None, "B-host", "a-host", "", None)
            for instance in (None, "11111111-1111-4111-8111-111111111111")
        )
    ]
    with db.writer() as session:
        session.add_all(arqs)


def pages(found: List, limit: int, **order: Any) -> Iterator[Sequence[Any]]:
    """Every page of a list until one is short."""
    marker = None
    while True:
        page = found(paging.Page(limit=limit, marker=marker, **order))
        yield page
        if len(page) < limit:
            return
        marker = page[-1].uuid


def test_pages_add_up_to_the_whole(ctx: context.RequestContext) -> None:
    def found(page: paging.Page) -> Sequence[service.Shown]:
        return service.list_arqs(ctx, page)

    for key, descending, limit in itertools.product(_ARQ_KEYS, (False, True), (1, 3, 20)):
        order: dict[str, Any] = {"sort_key": key, "descending": descending}
        whole = [arq.uuid for arq in found(paging.Page(**order))]
        assert len(set(whole)) == 20
        walked = [arq.uuid for page in pages(found, limit, **order) for arq in page]
        assert walked == whole, order


def test_null_is_the_least_value_and_ids_decide_between_equals(ctx) -> None:
    upwards = service.list_arqs(ctx, paging.Page(sort_key="updated_at"))
    times = [arq.updated_at for arq in upwards]
    nulls = times.count(None)
    assert nulls == 13
    assert times[:nulls] == [None] * nulls
    assert times[nulls:] == sorted(time for time in times if time is not None)
    by_id = [arq.uuid for arq in service.list_arqs(ctx)]
    assert [arq.uuid for arq in upwards[:nulls]] == [
        arq.uuid for arq in sorted(upwards[:nulls], key=lambda arq: by_id.index(arq.uuid))
    ]
    downwards = service.list_arqs(ctx, paging.Page(sort_key="updated_at", descending=True))
    assert [arq.uuid for arq in downwards] == [arq.uuid for arq in reversed(upwards)]


def test_a_marker_that_no_longer_matches_marks_its_place(ctx, tenant) -> None:
    bound = service.list_arqs(ctx, state=models.BOUND)
    with db.writer() as session:
        db.update(session, models.Arq, models.Arq.uuid == bound[4].uuid, state=models.UNBOUND)
    rest = service.list_arqs(ctx, paging.Page(marker=bound[4].uuid), state=models.BOUND)
    assert [arq.uuid for arq in rest] == [arq.uuid for arq in bound[5:]]
    # One of another project marks none.
    with pytest.raises(errors.Invalid, match=bound[0].uuid):
        service.list_arqs(tenant, paging.Page(marker=bound[0].uuid))


def test_the_budget_of_a_page(ctx: context.RequestContext, count_sql: CountSql) -> None:
    lists: dict[List, int] = {
        functools.partial(service.list_arqs, ctx): 1,
        query.list_devices: 1,
        query.list_deployables: 2,
        attributes.list_attributes: 1,
        functools.partial(profiles.list_profiles, ctx): 1,
    }
    for found, selects in lists.items():
        whole = found(paging.ALL)
        with count_sql() as counter:
            assert [row.uuid for row in found(paging.Page(limit=1))] == [whole[0].uuid]
        assert len(counter.statements) == len(counter.matching("SELECT")) == selects
        with count_sql() as counter:
            second = found(paging.Page(limit=1, marker=whole[0].uuid))
        assert [row.uuid for row in second] == [whole[1].uuid]
        assert len(counter.statements) == len(counter.matching("SELECT")) == selects + 1


def test_a_part_of_an_instances_requests_is_resolved_when_all_are(ctx) -> None:
    instance = "11111111-1111-4111-8111-111111111111"
    one = functools.partial(
        service.list_arqs,
        ctx,
        paging.Page(limit=1),
        only_resolved=True,
        instance_uuid=instance,
        state=models.BOUND,
    )
    with pytest.raises(errors.Unresolved):
        one()
    with db.writer() as session:
        session.execute(sa.delete(models.Arq).where(models.Arq.state == models.INITIAL))
    assert len(one()) == 1


def test_a_list_reads_no_more_than_it_shows_and_a_request_than_it_is_made_of(
    ctx, count_sql
) -> None:
    with count_sql() as counter:
        service.list_arqs(ctx)
        query.list_devices()
        query.list_deployables()
    said = " ".join(counter.statements)
    for hidden in ("device_profile_group,", "driver_errors", "cpid_type", "origin", "access_key"):
        assert hidden not in said
    with count_sql() as counter:
        assert service.create(ctx, "a") == []
    (read,) = counter.matching("SELECT")
    assert "description" not in read


def test_times_are_read_as_they_were_written_and_only_own_columns_sort() -> None:
    whole = _MOMENT.replace(microsecond=0)
    with db.writer() as session:
        db.update(session, models.Device, models.Device.id == 1, updated_at=_MOMENT)
        db.update(session, models.Device, models.Device.id == 2, updated_at=whole)
    assert [device.updated_at for device in query.list_devices()][:2] == [_MOMENT, whole]
    for column in ("bogus", "value", "origin", "__table__"):
        with pytest.raises(errors.Invalid, match="invalid field for sorting"):
            attributes.list_attributes(paging.Page(sort_key=column))


def test_the_first_page_of_an_instance_is_cut_from_its_list(ctx, tenant) -> None:
    """It is what Nova asks for, so its statement is made once, and is not that of other lists."""
    instance = "11111111-1111-4111-8111-111111111111"
    whole = [arq.uuid for arq in service.list_arqs(ctx, instance_uuid=instance)]
    assert len(whole) == 10
    found = service.list_arqs(ctx, paging.Page(limit=3), instance_uuid=instance)
    assert [arq.uuid for arq in found] == whole[:3]
    with db.writer() as session:
        db.update(session, models.Arq, models.Arq.uuid == whole[0], consumer_uuid=None)
        db.update(session, models.Arq, models.Arq.uuid == whole[1], project_id=tenant.project_id)
    found = service.list_arqs(ctx, paging.Page(limit=20), instance_uuid=instance)
    assert [arq.uuid for arq in found] == whole[1:]
    found = service.list_arqs(tenant, paging.Page(limit=20), instance_uuid=instance)
    assert [arq.uuid for arq in found] == [whole[1]]
