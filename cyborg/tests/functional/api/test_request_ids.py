# SPDX-License-Identifier: Apache-2.0
"""The id of a request is found in the logs of every service that works for it."""

from __future__ import annotations

import logging
import threading

import pytest
import requests
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_log import formatters, log

from cyborg import db, work
from cyborg.db import models
from cyborg.tests import engine
from cyborg.tests.service import RP, Site, until

REQUEST = f"req-{models.new_uuid()}"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What all services of this process log, as they write it."""
    options = cfg.ConfigOpts()
    log.register_options(options)
    options(args=[], default_config_files=[], default_config_dirs=[])
    caplog.handler.setFormatter(formatters.ContextFormatter(config=options))
    caplog.set_level(logging.INFO, logger="cyborg")
    return caplog


def _bind(site: Site, request_id: str | None) -> str:
    """Send a bind under that id; the id of the answer."""
    group = {"resources:FPGA": "1"}
    name = models.new_uuid()
    site.call("POST", "/device_profiles", [{"name": name, "groups": [group]}])
    arq = site.call("POST", "/accelerator_requests", {"device_profile_name": name})["arqs"][0]
    wanted = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": models.new_uuid()}
    patch = [{"path": f"/{path}", "op": "add", "value": value} for path, value in wanted.items()]
    answer = requests.patch(
        f"{site.endpoint}/accelerator_requests",
        json={arq["uuid"]: patch},
        headers={"X-OpenStack-Request-ID": request_id} if request_id else {},
        timeout=60,
    )
    assert answer.status_code == 202
    return answer.headers["X-OpenStack-Request-ID"]


def test_the_id_a_client_sends_reaches_nova_placement_and_every_log(site, sink, lines) -> None:
    site.start(host_step=True)
    site.placement.request_ids.clear()
    _bind(site, REQUEST)
    until(lambda: sink.requests and site.idle())
    assert sink.request_ids == [REQUEST]
    own = [line for line in lines.text.splitlines() if REQUEST in line]
    # Of the API, the conductor, the agent, and the conductor again.
    for words in (
        *("is BindStarted: instance", "with attach handle", "Prepare ", "Nova accepted 1 events"),
    ):
        assert [line for line in own if words in line], words

    arq = site.call("GET", "/accelerator_requests")["arqs"][0]["uuid"]
    other = f"req-{models.new_uuid()}"
    url = f"{site.endpoint}/accelerator_requests?arqs={arq}"
    requests.delete(url, headers={"X-OpenStack-Request-ID": other}, timeout=60)
    # Placement may also be asked for what no request wanted: the host's report.
    until(lambda: site.idle() and other in site.placement.request_ids)

    # Without one it is the id that the API gave.
    given = _bind(site, None)
    until(lambda: len(sink.requests) > 1)
    assert sink.request_ids[1:] == [given]


@pytest.mark.every_database
@pytest.mark.makes_up_rows
@pytest.mark.usefixtures("database")
def test_work_remembers_the_last_request_that_wanted_it() -> None:
    def want(request_id: str | None) -> None:
        if request_id:
            oslo_context.RequestContext(global_request_id=request_id)
        with db.writer() as session:
            work.want(session, work.BIND, ["instance"])

    # A thread that acts for no request wants it last.
    for request_id in ("req-1", "req-2", None):
        thread = threading.Thread(target=want, args=[request_id])
        thread.start()
        thread.join()
    claimed = engine.take("test", 30.0, [work.BIND])
    assert claimed is not None
    assert claimed.request_id == "req-2"
