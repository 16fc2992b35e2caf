# SPDX-License-Identifier: Apache-2.0
"""A conductor process for test_work_engine: real worker, a handler that journals what it does.

Usage: work_conductor.py URL NAME CLOCK_SKEW_SECONDS. Runs until its standard input closes.
"""

from __future__ import annotations

import random
import sys
import time

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg import db, work
from cyborg.conductor import worker
from cyborg.db import models

LEASE = 1.5

JOURNAL = sa.Table(
    "journal",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("key", sa.String(64), index=True),
    sa.Column("what", sa.String(8)),
    sa.Column("owner", sa.String(64)),
)


@db.retry
def journal(item: work.Item, what: str) -> None:
    """Write one line, as a real handler writes: only while the row is still ours."""
    mine = sa.select(models.Work.id).where(models.Work.owner == item.owner).with_for_update()
    with db.writer() as session:
        if session.scalar(mine) is None:
            raise work.LeaseLost(item.key)
        session.execute(JOURNAL.insert().values(key=item.key, what=what, owner=item.owner))


def handle(item: work.Item) -> None:
    """Slow for some keys, failing at times, and never silent about when it ran."""
    journal(item, "run")
    if item.key.startswith("slow"):
        time.sleep(2 * LEASE)
    item.checkpoint()
    # Before it fails: a failed run is over too.
    journal(item, "end")
    if random.random() < 0.1:
        raise work.TryLater("not this time")


def main(url: str, name: str, skew: str) -> None:
    real = time.time
    time.time = lambda: real() + float(skew)
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    db.register(conf)
    conf(args=[], default_config_files=[], default_config_dirs=[])
    conf.set_override("connection", url, group="database")
    db.configure(conf)
    runner = worker.Worker(
        {"test": handle}, name=name, threads=4, lease_seconds=LEASE, poll_interval=0.2
    )
    runner.start()
    sys.stdin.read()
    runner.stop(grace=10)


if __name__ == "__main__":
    main(*sys.argv[1:])
