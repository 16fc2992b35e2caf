# SPDX-License-Identifier: Apache-2.0
"""Whatever is stopped, killed or cut off: no card is written under a guest, or falsely on offer.

Two conductors and three agents are processes on MariaDB or PostgreSQL and RabbitMQ. Each card has
histories of programs, guests and power failures, while processes are suspended and killed, their
connections held, broken and restored, answers lost, and the records of silent hosts removed by
force. The hardware is looked at before and after each write, Placement whenever it has changed.

``CYBORG_TEST_HISTORIES`` is how many histories there are, and ``CYBORG_TEST_SEED`` makes others.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent import futures

import pytest
import sqlalchemy as sa

from cyborg import db, profiles, rpc, work
from cyborg.db import models
from cyborg.tests import messages, servers
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.partitions import lives
from cyborg.tests.partitions.cloud import CARDS, HOSTS, Cloud, Storm
from cyborg.tests.service import until

pytestmark = [
    pytest.mark.parametrize(
        "database_kind",
        [pytest.param(kind, marks=pytest.mark.services) for kind in servers.DATABASES],
        indirect=True,
    ),
]

HISTORIES = int(os.environ.get("CYBORG_TEST_HISTORIES", "30"))
SEED = int(os.environ.get("CYBORG_TEST_SEED", "1"))


@pytest.fixture
def image(images: GlanceServer) -> str:
    """An image of AES; there is one of ZIP too."""
    found = ""
    for function in ("zip", "aes"):
        properties = {"accel_function_id": function, "accel_function_name": function.title()}
        data = json.dumps({"function": function}).encode()
        found = images.upload(function, data, **properties)
    return found


@pytest.fixture
def cloud(conf, database, database_url, placement, image, tmp_path) -> Iterator[Cloud]:
    """Everything runs, and is on offer."""
    with messages.transport(conf, "rabbitmq"):
        rpc.configure(conf)
        work.wake_after_commit(rpc.kick)
        for name, keys in lives.profiles(image).items():
            groups = [{"resources:FPGA": "1"} | keys]
            profiles.create_profile(name=name, groups=groups, description=None, uuid=None)
        one = Cloud(conf, tmp_path, database_url, placement)
        one.start()
        try:
            until(lambda: len(placement.shows("FPGA")) == len(HOSTS) * CARDS)
            yield one
        finally:
            one.stop()


def test_in_any_order(cloud, ctx, image, capsys) -> None:
    chance, numbers, tally = random.Random(SEED), itertools.count(1), lives.Tally()
    storm = Storm(cloud, chance)
    lock = threading.Lock()

    def live(life: lives.Life) -> None:
        while True:
            with lock:
                number = next(numbers)
            if number > HISTORIES or cloud.books.faults.stat().st_size:
                return
            life.live(random.Random(f"{SEED}/{number}"))

    every = [
        lives.Life(cloud, host, card, ctx, image, tally)
        for host in cloud.hosts.values()
        for card in host.cards
    ]
    began = time.monotonic()
    storm.begin()
    with futures.ThreadPoolExecutor(len(every)) as pool:
        list(pool.map(live, every))
    storm.end()
    took = time.monotonic() - began
    with capsys.disabled():
        written = Counter(line[0] for life in every for line in life.card.journal() if line)
        said = dict(tally.counts + storm.counts + written)
        speed = f"{took:.0f} s, {tally.counts['histories'] / took:.2f} a second"
        sys.stdout.write(f"\nseed {SEED}, {speed}: {said}\n")

    assert cloud.books.faults.read_text() == ""
    deadline = time.monotonic() + lives.PATIENCE
    while left := _left():
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def _left() -> list[tuple[str, str, str | None, int]]:
    """What has not been done."""
    row = models.Work
    with db.reader() as session:
        query = sa.select(row.kind, row.key, row.last_error, row.attempts)
        return [(kind, key, error, tries) for kind, key, error, tries in session.execute(query)]
