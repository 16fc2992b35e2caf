# SPDX-License-Identifier: Apache-2.0
"""The command cyborg-conductor: works on its database until it is told to stop."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import sqlalchemy as sa

from cyborg import db, work
from cyborg.db import models
from cyborg.tests.engine import left
from cyborg.tests.standalone_site import TIMEOUT, wait_for


def test_it_does_what_the_database_wants_and_ends_in_good_order(
    database: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    config = tmp_path / "cyborg.conf"
    config.write_text(
        f"[DEFAULT]\ntransport_url = fake://\n[database]\nconnection = {database_url}\n"
        "[conductor]\npoll_interval = 0.1\n"
    )
    command = pathlib.Path(sys.executable).with_name("cyborg-conductor")
    with subprocess.Popen([command, "--config-file", config], stdout=subprocess.DEVNULL) as process:
        try:
            with db.writer() as session:
                work.want(session, work.NOVA_EVENT, [models.new_uuid()])
            wait_for("the work", lambda: left() == 0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) == 0
        finally:
            process.kill()
