# SPDX-License-Identifier: Apache-2.0
"""cyborg-nova-watcher hears from Nova's own code, over a real broker, that no host had room."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator

import pytest

from cyborg.nova import watcher
from cyborg.policy import context
from cyborg.tests import mutants, servers
from cyborg.tests.fpgas import AES, SIX, Fpgas
from cyborg.tests.service import Site, until

pytestmark = pytest.mark.services

Announce = Callable[..., None]


@pytest.fixture
def cloud(site: Site, ctx: context.RequestContext) -> Fpgas:
    fpgas = Fpgas(site, ctx)
    fpgas.report(SIX)
    return fpgas


@pytest.fixture
def announce(site, conf, nova_client, caplog) -> Iterator[Announce]:
    """Announce what could not be built for a device profile, while a watcher runs."""
    topic, url = f"versioned-{uuid.uuid4().hex}", servers.url_of("rabbitmq")
    options = {"transport_url": url, "topic": topic, "auth_type": "none"}
    options["endpoint_override"] = site.endpoint
    for name, value in options.items():
        conf.set_override(name, value, group=watcher.GROUP)
    running = watcher.Watcher(conf)
    with caplog.at_level(logging.INFO, watcher.__name__):
        running.start()
        until(lambda: f"listening to {topic}" in caplog.text)
    yield lambda profile, kind="NoValidHost": nova_client.announce_failure(
        url, topic, profile, kind
    )
    running.stop()


def test_a_server_without_a_host_is_a_miss(cloud, site, announce) -> None:
    pool = cloud.pool(free=0, max_devices=2)
    group = {"resources:FPGA": "2"}
    for name, more in (("with-aes", {"accel:function_id": AES}), ("plain", {})):
        site.call("POST", "/device_profiles", [{"name": name, "groups": [group | more]}])

    # None of these is one.
    announce(None)
    announce("plain")
    announce("no-such-profile")
    announce("with-aes", "AcceleratorRequestOpFailed")
    announce("with-aes")

    assert until(lambda: cloud.counts(pool).get("misses")) == 2


def test_what_nova_does_not_send_stops_nothing(cloud, site, conf, announce, caplog) -> None:
    pool = cloud.pool(free=0, max_devices=1)
    groups = [{"resources:FPGA": "1", "accel:function_id": AES}]
    site.call("POST", "/device_profiles", [{"name": "with-aes", "groups": groups}])
    true = {"event_type": watcher.EVENT, "publisher_id": "a", "priority": "ERROR", "payload": {}}
    sender = mutants.Sender(servers.url_of("rabbitmq"))
    found = [*mutants.special(true | {"message_id": "1", "timestamp": "2"}), next(mutants.bombs())]
    for mutant in found[::3]:
        sender.send(conf[watcher.GROUP].pool, mutant)
    sender.close()

    announce("with-aes")

    assert until(lambda: cloud.counts(pool).get("misses")) == 1
    assert "Traceback" not in caplog.text
    assert all(line.isprintable() for line in caplog.messages)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"nova_object.data": None},
        {"nova_object.data": {"reason": {"nova_object.data": {"exception": "NoValidHost"}}}},
        {
            "nova_object.data": {
                "reason": {"nova_object.data": {"exception": "NoValidHost"}},
                "request_spec": None,
            }
        },
    ],
)
def test_what_says_nothing_of_a_profile_is_passed_over(payload: dict[str, object]) -> None:
    assert watcher.missed_profile(payload) is None
