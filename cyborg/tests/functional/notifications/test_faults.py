# SPDX-License-Identifier: Apache-2.0
"""What becomes of notifications while brokers are away and conductors die."""

from __future__ import annotations

import functools
import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, notifications
from cyborg.conductor import service as conductor_service
from cyborg.db import models
from cyborg.handles import release
from cyborg.notifications import sender
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts, listening, messages, servers
from cyborg.tests.listening import Ear
from cyborg.tests.service import PATIENCE, until

pytestmark = pytest.mark.usefixtures("database")


def broker_is_away() -> bool:
    """Whether a conductor has tried to send in vain."""
    return "took no notification" in (engine.pending().get("notify/all") or "")


@pytest.fixture
def dead_port() -> int:
    return 1


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening_only:
        yield listening_only.getsockname()[1]


@pytest.mark.usefixtures("announcing")
@pytest.mark.parametrize("broker", ["dead_port", "silent_port"])
def test_while_the_broker_is_down_all_else_goes_on(
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    broker: str,
    request: pytest.FixtureRequest,
) -> None:
    with messages.transport(conf, "memory"):
        url = f"rabbit://nobody:none@127.0.0.1:{request.getfixturevalue(broker)}/"
        conf.set_override("transport_url", url, group=notifications.GROUP)
        conf.set_override("poll_interval", 0.1, group="conductor")
        hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
        conductor = conductor_service.ConductorService(conf)
        conductor.start()
        try:
            until(broker_is_away)
            uuids = boots.arqs(ctx)
            boots.bind(ctx, uuids, models.new_uuid())
            until(lambda: boots.states(ctx) == {uuids[0]: models.BOUND})
        finally:
            conductor.stop()
        assert listening.recorded() == [
            "device.create.end",
            "accelerator_request.create.end",
            "accelerator_request.bind.end",
        ]


@pytest.mark.services
def test_what_happens_while_the_broker_is_away_is_heard_when_it_is_back(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    wire = messages.Wire(servers.url_of("rabbitmq"))
    with listening.ear(conf, "rabbitmq") as ear, messages.transport(conf, "memory"):
        conf.set_override("transport_url", wire.url, group=notifications.GROUP)
        conf.set_override("poll_interval", 0.1, group="conductor")
        conductor = conductor_service.ConductorService(conf)
        conductor.start()
        try:
            wire.join()
            first = boots.arqs(ctx)
            until(lambda: ear.events)
            wire.cut()
            release.delete_arqs(ctx, first)
            boots.arqs(ctx, 3)
            until(broker_is_away)
            wire.join()
            engine.make_due()
            until(lambda: not listening.recorded())
        finally:
            conductor.stop()
            wire.cut()
        # Its first message may be sent again: that the broker took it may have been cut off.
        until(lambda: len(set(heard_ids(ear))) == 5)
        heard = {one.data["notification_id"]: one.event for one in ear.heard}
        assert list(heard.values()) == [
            "accelerator_request.create.end",
            "accelerator_request.delete.end",
            *["accelerator_request.create.end"] * 3,
        ]


@pytest.mark.services
def test_a_conductor_that_is_killed_loses_nothing(
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    database_url: str,
    tmp_path: pathlib.Path,
) -> None:
    with listening.ear(conf, "rabbitmq") as ear:
        boots.arqs(ctx, 400)
        written = recorded_ids()
        path = tmp_path / "cyborg.conf"
        group = conf[notifications.GROUP]
        path.write_text(
            f"[DEFAULT]\ntransport_url = fake://\n[database]\nconnection = {database_url}\n"
            "[conductor]\npoll_interval = 0.1\nwork_lease = 2\n"
            f"[{notifications.GROUP}]\ndriver = messagingv2\ntopics = {group.topics[0]}\n"
            f"transport_url = {conf.transport_url}\n"
        )
        for share in (1, 120, 240):
            with start_conductor(path) as conductor:
                until(functools.partial(has_heard, ear, share))
                conductor.kill()
        # Whatever those have sent, there is something for which the last one has to be up.
        boots.arqs(ctx)
        written += recorded_ids()[-1:]
        with start_conductor(path) as conductor:
            until(lambda: not listening.recorded())
            conductor.terminate()
            assert conductor.wait(PATIENCE) == 0
        until(lambda: len(set(heard_ids(ear))) == len(written))
    assert list(dict.fromkeys(heard_ids(ear))) == written


def start_conductor(config: pathlib.Path) -> subprocess.Popen[bytes]:
    program = pathlib.Path(sys.executable).with_name("cyborg-conductor")
    return subprocess.Popen([program, "--config-file", config], stderr=subprocess.DEVNULL)


def has_heard(ear: Ear, share: int) -> bool:
    return len(ear.heard) >= share or not listening.recorded()


def recorded_ids() -> list[str]:
    row = models.Notification
    with db.reader() as session:
        return list(session.scalars(sa.select(row.uuid).order_by(row.id)))


def heard_ids(ear: Ear) -> list[str]:
    return [one.data["notification_id"] for one in ear.heard]


@pytest.mark.every_database
@pytest.mark.usefixtures("announcing")
def test_a_conductor_that_dies_while_sending_repeats_in_order(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, str]] = []

    class Died(BaseException):
        pass

    def send(_sender: sender.Sender, notification: models.Notification) -> None:
        if len(sent) == 2:
            sent.append(("", "died"))
            raise Died
        sent.append((notification.uuid, notification.event_type))

    first, second = boots.arqs(ctx, 2)
    release.delete_arqs(ctx, [second])
    release.delete_arqs(ctx, [first])
    expected = ["accelerator_request.create.end"] * 2 + ["accelerator_request.delete.end"] * 2
    assert listening.recorded() == expected
    monkeypatch.setattr(sender.Sender, "_send", send)
    with monkeypatch.context() as dying:
        dying.setattr(sender, "_forget", lambda ids: None)
        with pytest.raises(Died):
            listening.send(conf)
    assert listening.recorded() == expected
    # Its lease ends.
    with db.writer() as session:
        db.delete(session, models.Work, models.Work.kind == notifications.KIND)

    listening.send(conf)
    repeated = sent[sent.index(("", "died")) + 1 :]
    assert [event for _, event in repeated] == expected
    assert repeated[:2] == sent[:2]
    assert listening.recorded() == []


@pytest.mark.usefixtures("announcing")
def test_two_that_send_the_same_forget_nothing_else(ctx: context.RequestContext) -> None:
    """As where a lease ends meanwhile. SQLite gives the number of the first row to the second."""
    boots.arqs(ctx)
    sent = sender._oldest()
    sender._forget(sent)
    boots.arqs(ctx)
    sender._forget(sent)
    assert listening.recorded() == ["accelerator_request.create.end"]
