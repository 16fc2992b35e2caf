#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which statements of Cyborg read a large table from one end to the other.

    eval "$(tools/services.sh env)"; tools/benchmarks/plans.py [-k mysql]

On each database there are 500 hosts with 8 devices of 16 handles, three quarters of them given
away. A host more reports, an ARQ lives its life on it, lists are read; then every statement that
ran is explained by the database. Exit status 1 where one reads all of a table that grows with the
cloud.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from cyborg.db import models
from cyborg.tests.service import RP, Site, until


class Size(NamedTuple):
    """Hosts, devices of each, attach handles of each of these, and how many of these are given."""

    hosts: int
    devices: int
    handles: int
    given: int


LARGE_CLOUD = Size(hosts=500, devices=8, handles=16, given=12)
FIRST_ID = 1000
#: A plan that reads so many rows reads a table.
MANY = 1000
LARGE = (
    models.Device,
    models.ControlPath,
    models.Deployable,
    models.ResourceProvider,
    models.Attribute,
    models.AttachHandle,
    models.Arq,
)
LISTS = (
    "/accelerator_requests?limit=50",
    "/accelerator_requests?limit=50&state=Bound",
    "/accelerator_requests?limit=50&project_id=project-7",
    "/devices?limit=50",
    "/devices?hostname=host-120",
    "/deployables?limit=50",
    "/deployables?name=host-120_3",
    "/attributes?limit=50",
)


@pytest.mark.makes_up_rows
def test_no_table_is_read_as_a_whole(site: Site, database: sa.Engine) -> None:
    """Fill the database, use it, and have explained what was asked of it."""
    fill(database, LARGE_CLOUD)
    ran: dict[str, Any] = {}

    def remember(_conn: object, _cursor: object, text: str, values: Any, *_rest: object) -> None:
        if text.split(maxsplit=1)[0] in {"SELECT", "UPDATE", "DELETE"}:
            ran.setdefault(text, values)

    sa.event.listen(database, "before_cursor_execute", remember)
    use(site)
    sa.event.remove(database, "before_cursor_execute", remember)

    reads = {text: list(whole_tables(database, text, values)) for text, values in ran.items()}
    print(f"\n{database.dialect.name}: {len(reads)} statements")
    for text, tables in reads.items():
        if tables:
            print(f"{', '.join(tables)}\n    {' '.join(text.split())}")
    assert not any(reads.values())


def use(site: Site) -> None:
    """What happens all day."""
    site.start()
    groups = [{"resources:FPGA": "1"}]
    site.call("POST", "/device_profiles", [{"name": "one", "groups": groups}])
    arqs = site.call("POST", "/accelerator_requests", {"device_profile_name": "one"})["arqs"]
    instance = models.new_uuid()
    values = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": instance}
    patch = [{"path": f"/{path}", "op": "add", "value": value} for path, value in values.items()]
    site.call("PATCH", "/accelerator_requests", {arqs[0]["uuid"]: patch})
    resolved = f"/accelerator_requests?instance={instance}&bind_state=resolved"
    until(lambda: site.ask("GET", resolved).status_code == 200)
    site.call("GET", f"/accelerator_requests/{arqs[0]['uuid']}")
    site.call("DELETE", f"/accelerator_requests?instance={instance}")
    for path in LISTS:
        site.call("GET", path, version="2.4")
    site.report_again()
    until(site.idle)
    # Once round everything that conductors do from time to time.
    time.sleep(3)


def fill(engine: sa.Engine, size: Size) -> None:
    """Make the rows of a cloud in use."""
    later = int(time.time() * 1000) + 10**8
    hosts, rows = [], {model: [] for model in LARGE}
    for number in range(size.hosts):
        name, row_id = f"host-{FIRST_ID + number}", FIRST_ID + number
        seen = {"last_seen_ms": later, "audited_ms": later}
        hosts.append({"id": row_id, "name": name, "node": name, **seen})
    places = itertools.product(hosts, range(size.devices))
    for row_id, (host, number) in enumerate(places, FIRST_ID):
        for model, row in device(size, row_id, host, number, later):
            rows[model].append(row)
    with engine.begin() as connection:
        connection.execute(sa.insert(models.Host), hosts)
        for model, made in rows.items():
            for begin in range(0, len(made), 5000):
                connection.execute(sa.insert(model), made[begin : begin + 5000])
        for model in (models.Host, *LARGE):
            table = model.__tablename__
            word = "ANALYZE TABLE" if engine.dialect.name == "mysql" else "ANALYZE"
            connection.execute(sa.text(f"{word} {table}"))
            if engine.dialect.name == "postgresql":
                # It does not notice ids that were not its own.
                connection.execute(sa.text(f"SELECT setval('{table}_id_seq', 10000000)"))


def device(
    size: Size, row_id: int, host: Mapping[str, Any], number: int, later: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The rows of one device."""
    name, provider = f"{host['name']}_{number}", models.new_uuid()
    of = {"id": row_id, "host_id": host["id"]}
    card = {"driver": "fake_driver", "type": "FPGA", "vendor": "0x8086", "model": "card"}
    yield models.Device, {**of, **card}
    path = {"cpid_info": json.dumps({"path": name})}
    yield models.ControlPath, {**of, "device_id": row_id, "cpid_type": "PCI", **path}
    yield models.ResourceProvider, {**of, "uuid": provider, "name": name}
    fields = {"name": name, "num_accelerators": size.handles, "driver_name": "fake"}
    yield models.Deployable, {"id": row_id, "device_id": row_id, "rp_uuid": provider, **fields}
    for key in ("rc", "trait0", "trait1", "product"):
        yield models.Attribute, {"deployable_id": row_id, "key": key, "value": "FPGA"}
    for place in range(size.handles):
        handle_id = row_id * size.handles + place
        info = {"attach_type": "TEST_PCI", "attach_info": json.dumps({"function": place})}
        yield models.AttachHandle, {"id": handle_id, "deployable_id": row_id, **info}
        if place < size.given:
            yield (
                models.Arq,
                {
                    "project_id": f"project-{row_id % 50}",
                    "state": "Bound",
                    "device_profile_name": "one",
                    "device_profile_group": {"resources:FPGA": "1"},
                    "hostname": host["name"],
                    "device_rp_uuid": provider,
                    "instance_uuid": models.new_uuid(),
                    "instance_asked_ms": later,
                    "attach_handle_id": handle_id,
                },
            )


def whole_tables(engine: sa.Engine, text: str, values: Any) -> Iterator[str]:
    """The large tables of which the statement reads everything."""
    names = {model.__tablename__ for model in LARGE}
    word = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
    with engine.connect() as connection:
        for row in connection.exec_driver_sql(f"{word} {text}", values).mappings():
            match engine.dialect.name:
                case "mysql" if row["type"] in {"ALL", "index"} and int(row["rows"] or 0) > MANY:
                    yield str(row["table"])
                case "postgresql":
                    found = re.search(r"Seq Scan on (\w+)", row["QUERY PLAN"])
                    if found and found[1] in names:
                        yield found[1]
                case "sqlite":
                    # In the order of an index, as a page is read, it is no scan of everything.
                    found = re.search(r"SCAN (\w+)", row["detail"])
                    if found and found[1] in names and "ORDER BY" not in text:
                        yield found[1]


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> str:
    """Each of the three."""
    return str(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On every database, whatever marks say."""
    metafunc.parametrize("database_kind", ["sqlite", "mysql", "postgresql"], indirect=True)


if __name__ == "__main__":
    options = ["-q", "-s", "-p", "cyborg.tests.conftest", "-p", "no:cacheprovider", "-W", "ignore"]
    sys.exit(pytest.main([*options, __file__, *sys.argv[1:]]))
