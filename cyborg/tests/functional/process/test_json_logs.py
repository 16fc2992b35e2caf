# SPDX-License-Identifier: Apache-2.0
"""With ``[DEFAULT] use_json`` each record of the log is one line of JSON that names its request."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_log import formatters

from cyborg.hosts import draining
from cyborg.tests import hosts
from cyborg.tests.mounted_api import Api

pytestmark = pytest.mark.usefixtures("database")

REASON = 'two\nlines, "quotes", \x1b[31m and %s'


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the API logs, as oslo.log writes it in JSON."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatters.JSONFormatter())
    logger = logging.getLogger("cyborg")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield text
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_each_record_is_a_line_with_its_request(conf, log, monkeypatch) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    hosts.apply(hosts.card("a"))
    api = Api(conf)

    drained = api.ask("POST", "/v2/hosts/host-1/drain", {"reason": REASON})
    assert drained.status_int == 200, drained.text
    assert drained.json["drain_reason"].startswith("two\nlines")

    def fail(*_arguments: Any) -> None:
        raise RuntimeError(REASON)

    monkeypatch.setattr(draining, "get_host", fail)
    broken = api.ask("GET", "/v2/hosts/host-1")
    assert broken.status_int == 500

    records = [json.loads(line) for line in log.getvalue().splitlines()]
    said = {
        answer.headers["x-openstack-request-id"]: answer.status_int for answer in (drained, broken)
    }
    # Of a request that fails the last line says only how it was answered.
    found = {said.get(record["context"].get("request_id")): record for record in reversed(records)}
    assert "is drained" in found[200]["message"]
    assert "RuntimeError" in str(found[500]["traceback"])
