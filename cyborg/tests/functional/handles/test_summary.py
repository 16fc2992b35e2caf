# SPDX-License-Identifier: Apache-2.0
"""``GET /v2/summary`` counts each accelerator once, by host and resource class."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.db import models
from cyborg.policy import context
from cyborg.tests import boots, hosts
from cyborg.tests.mounted_api import Api

pytestmark = pytest.mark.usefixtures("database")

NUMBERS = ("total", "used", "free", "preparing", "out_of_service")
ROOT, OTHER = hosts.ROOT, "host-2.example"


@pytest.fixture
def api(conf: cfg.ConfigOpts) -> Api:
    conf.set_override("auth_strategy", "noauth", group="api")
    return Api(conf)


def populate(conf: cfg.ConfigOpts, ctx: context.RequestContext) -> None:
    """Host 1: one of four FPGAs used, one left; two blank; four ill GPUs. Host 2: four GPUs."""
    hosts.apply(
        hosts.card("a", cleans=True),
        hosts.card("b", range(4, 6), program_mode="single-program"),
        hosts.card("c", range(6, 10), resource_class="PGPU", unhealthy="It burns."),
    )
    gpus = hosts.device("d", hosts.deployable("host-2_d", range(4), resource_class="PGPU"))
    hosts.apply(gpus, host="host-2")
    boots.boot(conf, ctx)
    handle = models.AttachHandle
    with db.writer() as session:
        unused = sa.select(handle.id).outerjoin(handle.arq).where(models.Arq.id.is_(None))
        one = session.scalars(unused.order_by(handle.id).limit(1)).one()
        db.update(session, handle, handle.id == one, state=models.TO_CLEAN)


def of(api: Api, query: str = "") -> dict[tuple[str, str], tuple[int, ...]]:
    """The numbers of each host and class."""
    found = api.call("GET", f"/v2/summary{query}")["summary"]
    return {(row["hostname"], row["resource_class"]): numbers(row) for row in found}


def numbers(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in NUMBERS)


@pytest.mark.every_database
@pytest.mark.makes_up_rows
def test_each_accelerator_counts_once(api, conf, ctx) -> None:
    populate(conf, ctx)
    fpga, ill, gpu = (ROOT, "FPGA"), (ROOT, "PGPU"), (OTHER, "PGPU")
    expected = {fpga: (6, 1, 2, 3, 0), ill: (4, 0, 0, 0, 4), gpu: (4, 0, 4, 0, 0)}
    assert of(api) == expected
    totals = api.call("GET", "/v2/summary?limit=1")["totals"]
    sums = {row["resource_class"]: numbers(row) for row in totals}
    assert sums == {"FPGA": (6, 1, 2, 3, 0), "PGPU": (8, 0, 4, 0, 4)}
    assert of(api, f"?hostname={OTHER}") == {gpu: expected[gpu]}
    assert of(api, "?resource_class=FPGA") == {fpga: expected[fpga]}
    assert of(api, "?resource_class=NONE") == {}
    whole, pages = api.call("GET", "/v2/summary")["summary"], []
    path: str | None = "/v2/summary?limit=1"
    while path is not None:
        page = api.call("GET", path)
        pages += page["summary"]
        links = page.get("summary_links", [])
        path = links[0]["href"].removeprefix("https://cloud.example/accelerator") if links else None
    assert (pages, len(pages)) == (whole, 3)
    assert api.ask("GET", "/v2/summary", version="2.3").status_int == 404
    with db.writer() as session:
        db.update(session, models.Host, models.Host.node == ROOT, drained=True)
    assert of(api, "?resource_class=FPGA") == {fpga: (6, 1, 0, 1, 4)}


def test_two_statements_for_any_number_of_hosts(api, conf, ctx, count_sql) -> None:
    for number in range(3):
        card = hosts.device("a", hosts.deployable(f"host-{number}_a"))
        hosts.apply(card, host=f"host-{number}")
        with count_sql() as counter:
            assert len(of(api)) == number + 1
        assert len(counter.matching("SELECT")) == 2


@pytest.mark.makes_up_rows
def test_what_is_gone_counts_as_long_as_somebody_has_it(api, conf, ctx) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 6), resource_class="PGPU"))
    boots.boot(conf, ctx)
    hosts.apply()
    assert of(api) == {(ROOT, "FPGA"): (1, 1, 0, 0, 0)}
