# SPDX-License-Identifier: Apache-2.0
"""Killed anywhere between PATCH and Bound and started again, the process decides every request.

Each process of a chain takes up what its killed predecessor left, and is killed itself one step
further on the way. The chain ends with a process that comes to rest, for the way has no further
point.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from oslo_config import cfg

from cyborg import db
from cyborg.placement import client, desired, local, tree
from cyborg.tests import cuts
from cyborg.tests.novasink import NovaSink
from cyborg.tests.standalone_site import HOST, RP, Instance, Site, wait_for

pytestmark = pytest.mark.slow

#: Chains that share the points of one way among them.
SHARDS = 2
#: From one point of a chain to its next; 2 reaches every point. Each costs the start of a process.
STEP = int(os.environ.get("CYBORG_TEST_KILL_STEP", "3"))
HANDLES = 200

CONFIG = """
[agent]
report_interval = 3600
discovery_interval = 3600
[conductor]
poll_interval = 0.2
# These instances claim nothing in Placement, and the Nova here has none of them.
allocation_audit_interval = 0
[fake_driver]
handles_per_device = {handles}
host_step = {host_step}
[nova]
auth_type = none
endpoint_override = {nova}
"""


@pytest.fixture(params=[False, True], ids=["plain", "host-step"])
def site(request, tmp_path, sink, conf) -> Iterator[Site]:
    text = CONFIG.format(handles=HANDLES, host_step=request.param, nova=sink.url)
    site = Site(tmp_path, text)
    local.point_at(conf, f"{site.url}/placement")
    conf.set_override("connection", site.database_url, group="database")
    db.configure(conf)
    yield site
    db.dispose()


def _assert_recovers(site: Site, instance: Instance, nova: NovaSink) -> None:
    if not instance.states():
        # The PATCH left no trace, so its sender has no answer and sends it again.
        assert not instance.answered
        instance.bind()
    wait_for("Bound", lambda: instance.states() == {"Bound"})
    wait_for("the event", lambda: set(instance.arqs) <= nova.events.keys())
    assert {nova.events[uuid] for uuid in instance.arqs} == {"completed"}
    wait_for("rest", site.is_at_rest)
    handles = [arq["attach_handle_uuid"] for arq in site.arqs()]
    assert len(handles) == len(set(handles))
    assert None not in handles


def _assert_placement_is_right(conf: cfg.ConfigOpts) -> None:
    api = client.Client(conf)
    state = desired.read(HOST)
    assert state is not None
    listed = {found.uuid: found for found in api.find_tree(state.root_name)}
    (root,) = (found for found in listed.values() if found.name == state.root_name)
    actual = {uuid: api.read_provider(found) for uuid, found in listed.items() if found != root}
    ours = {uuid: record.ours for uuid, record in state.records.items()}
    assert tree.plan(state.below(root.uuid), actual, ours) == []
    assert state.providers.keys() == {RP}


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_request_is_decided(request, site, sink, conf, shard) -> None:
    instances: list[Instance] = []
    kill_at, status = 1 + shard, None
    while status != 0:
        with site.serve(kill_at):
            if instances:
                _assert_recovers(site, instances[-1], sink)
                _assert_placement_is_right(conf)
            else:
                site.prepare()
            instances.append(Instance(site))
            instances[-1].bind(**{cuts.HEADER: "yes"})
            wait_for("an end", lambda: not site.process.is_alive() or site.is_at_rest())
            # The last points of the way may come after the last of the work.
            status = site.stop()
        assert status in {0, -signal.SIGKILL}
        kill_at += STEP
    with site.serve():
        for instance in instances:
            _assert_recovers(site, instance, sink)
            site.ask("DELETE", f"/v2/accelerator_requests?instance={instance.uuid}")
        wait_for("rest", site.is_at_rest)
        _assert_placement_is_right(conf)
        path = f"/placement/resource_providers/{RP}/inventories/FPGA"
        inventory = site.ask("GET", path)
        assert (inventory["total"], inventory["reserved"]) == (HANDLES, 0)
    reached = {line.split(" in ")[0].split(" ", 1)[1] for line in site.journal.open()}
    things = {"commit", "http request"}
    if request.node.callspec.params["site"]:
        # Work without a step on the host is done in the process that wants it.
        things |= {"message sent", "message received"}
    # The agent may report in between, which is a message that has nothing to do with the way.
    assert reached >= {f"{when} {thing}" for when in ("before", "after") for thing in things}
