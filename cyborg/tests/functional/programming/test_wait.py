# SPDX-License-Identifier: Apache-2.0
"""PATCH of a program, which waits for its end, leaves threads to other requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures

import pytest
import requests
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.api import app, server
from cyborg.db import models
from cyborg.programming import operations
from cyborg.tests import boots, hosts, messages
from cyborg.tests.service import until

IMAGE = "bbbbbbbb-0000-4000-8000-000000000001"
BODY = [{"path": "/program", "op": "replace", "value": [{"image_uuid": IMAGE}]}]
#: Seconds within which a request that does not wait is answered, even on a busy machine.
SOON = 20


@pytest.fixture
def url(conf: cfg.ConfigOpts, database: sa.Engine) -> Iterator[str]:
    """The API with two threads, one of which may wait; nobody carries the operations out."""
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("threads", 2, group="api")
    conf.set_override("answer_timeout", 2 * SOON, group="programming")
    with messages.transport(conf, "memory"):
        http = server.Server(conf, app.load(conf), "127.0.0.1", 0)
        port = http.listen()
        http.start()
        yield f"http://127.0.0.1:{port}/v2"
        _end()
        http.stop()


def _end() -> None:
    """Let the operation, if there is one, have succeeded."""
    with db.writer() as session:
        values = {"state": operations.SUCCEEDED, "active": None}
        db.update(session, models.Operation, **values)


def test_those_who_wait_leave_threads_to_others(url, conf, ctx) -> None:
    """While one waits for a program, nobody waits for binds either: the other thread stays free."""
    conf.set_override("bind_wait", 60, group="api")
    hosts.apply(hosts.card("c", program_mode="dynamic"), hosts.card("a", prepares=True))
    (deployable,) = (each for each in hosts.deployables() if each.name.endswith("_c"))
    instance = models.new_uuid()
    boots.bind(ctx, boots.arqs(ctx), instance)

    def patch() -> requests.Response:
        path = f"{url}/deployables/{deployable.uuid}/program"
        return requests.patch(path, json=BODY, timeout=10 * SOON)

    with futures.ThreadPoolExecutor() as pool:
        asked = [pool.submit(patch) for _ in range(3)]
        try:
            assert requests.get(f"{url}/devices", timeout=SOON).status_code == 200
            until(lambda: sum(each.done() for each in asked) == 2)
            (waits,) = (each for each in asked if not each.done())
            refused = [each.result() for each in asked if each is not waits]
            (operation,) = operations.list_operations()
            for answer in refused:
                assert answer.status_code == 503
                assert f"operation {operation.uuid} goes on" in answer.text
                assert answer.headers["Retry-After"]
            answer = requests.get(f"{url}/accelerator_requests?instance={instance}", timeout=SOON)
            assert [arq["state"] for arq in answer.json()["arqs"]] == [models.BIND_STARTED]
            assert not waits.done()
        finally:
            _end()
        assert waits.result().status_code == 200
        # Its place is free again: the next one does not know that the image is loaded, and waits.
        again = pool.submit(patch)
        until(lambda: len(operations.list_operations()) == 2)
        _end()
        assert again.result().status_code == 200
