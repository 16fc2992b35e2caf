# SPDX-License-Identifier: Apache-2.0
"""The real Glance for tests: one for each test process."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import requests
from oslo_config import cfg

_PROCESS = pathlib.Path(__file__).with_name("glance_process.py")
#: Seconds within which Glance starts, even on a busy machine.
PATIENCE = 300
_POLL = 0.05


class GlanceServer:
    """A Glance without users at :attr:`url`; whoever asks is its administrator."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.url = (folder / "url").read_text()
        self._folder = folder

    def point_at(self, conf: cfg.ConfigOpts) -> None:
        """Let Cyborg find its bitstreams here."""
        conf.set_override("auth_type", "none", group="glance")
        conf.set_override("endpoint_override", self.url, group="glance")

    def upload(self, name: str, data: bytes | None = b"bitstream", **properties: str) -> str:
        """Make a public image, with no data where that is None; return its uuid.

        In the names of properties ``accel_`` stands for ``accel:``.
        """
        body = {
            "name": name,
            "disk_format": "raw",
            "container_format": "bare",
            "visibility": "public",
            **{key.replace("accel_", "accel:", 1): value for key, value in properties.items()},
        }
        made = requests.post(f"{self.url}/v2/images", json=body, timeout=PATIENCE)
        assert made.status_code == requests.codes.created, made.text
        uuid = str(made.json()["id"])
        if data is not None:
            headers = {"Content-Type": "application/octet-stream"}
            path = f"{self.url}/v2/images/{uuid}/file"
            put = requests.put(path, data=data, headers=headers, timeout=PATIENCE)
            assert put.status_code == requests.codes.no_content, put.text
        return uuid

    def describe(self, uuid: str, **properties: str) -> None:
        """Write more on an image, such as a signature, which Glance verifies while it uploads."""
        headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
        changes = [
            {"op": "add", "path": f"/{key}", "value": value} for key, value in properties.items()
        ]
        path = f"{self.url}/v2/images/{uuid}"
        done = requests.patch(path, data=json.dumps(changes), headers=headers, timeout=PATIENCE)
        assert done.status_code == requests.codes.ok, done.text

    def spoil(self, uuid: str, data: bytes) -> None:
        """Put other data where Glance keeps the image's."""
        (self._folder / "images" / uuid).write_bytes(data)

    def antedate(self, uuid: str, *, days: int = 30) -> None:
        """Let an image be older: Glance tells whole seconds only."""
        change = "UPDATE images SET created_at = datetime(created_at, ?) WHERE id = ?"
        with contextlib.closing(sqlite3.connect(self._folder / "glance.sqlite")) as database:
            database.execute(change, (f"-{days} days", uuid))
            database.commit()

    def clear(self) -> None:
        """Delete every image."""
        while listed := requests.get(f"{self.url}/v2/images", timeout=PATIENCE).json()["images"]:
            for image in listed:
                requests.delete(f"{self.url}/v2/images/{image['id']}", timeout=PATIENCE)


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[GlanceServer]:
    """A Glance whose files are in an empty folder."""
    output = folder / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(_PROCESS), str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + PATIENCE
    while not (folder / "url").exists():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(_POLL)
    yield GlanceServer(folder)
    process.communicate()


@pytest.fixture(scope="session")
def glance_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlanceServer]:
    """Glance, started by the first test that needs it."""
    with running(tmp_path_factory.mktemp("glance")) as server:
        yield server


@pytest.fixture
def images(glance_process: GlanceServer, conf: cfg.ConfigOpts) -> GlanceServer:
    """A Glance without images that ``[glance]`` of ``conf`` points at."""
    glance_process.clear()
    glance_process.point_at(conf)
    return glance_process
