# SPDX-License-Identifier: Apache-2.0
"""The one fake FPGA card of a site, as clients and schedulers see it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from oslo_config import cfg

from cyborg.db import models
from cyborg.tests import engine, hosts, messages
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.service import RP, Site, until

#: How many attach handles it has.
HANDLES = 4


class Card:
    """The one fake card of the site, as clients and schedulers see it."""

    def __init__(self, site: Site, images: GlanceServer) -> None:
        self.site = site
        self._images = images
        self.uuid = site.call("GET", "/deployables")["deployables"][0]["uuid"]

    def image(self, function: str, **properties: str) -> str:
        """Upload a bitstream of the function."""
        known = {"accel_function_id": function} | properties
        return self._images.upload(function, json.dumps({"function": function}).encode(), **known)

    def program(self, **what: str) -> requests.Response:
        """Ask for it to be programmed."""
        return self.site.ask("POST", f"/deployables/{self.uuid}/program", what, "2.4")

    def programmed(self, **what: str) -> dict[str, Any]:
        """Have it programmed, and return the operation when it has ended."""
        answer = self.program(**what)
        assert answer.status_code == 202, answer.text
        return self.ended(answer.json()["uuid"])

    def run(self, image: str) -> None:
        """Have it programmed with the image, which succeeds."""
        operation = self.programmed(image_uuid=image)
        assert (operation["state"], operation["error"]) == ("succeeded", None)

    def bound(self, arq: str) -> None:
        """Return when the ARQ is Bound."""
        found = self.resolved(arq)
        assert (found["state"], found["state_reason"]) == ("Bound", None)

    def ended(self, operation: str) -> dict[str, Any]:
        """The operation, when it has ended."""

        def read() -> dict[str, Any] | None:
            engine.make_due()
            found: dict[str, Any] = self.site.call("GET", f"/operations/{operation}", version="2.4")
            return found if found["ended_at"] else None

        return until(read)

    def operation(self) -> dict[str, Any]:
        """The latest operation."""
        path = "/operations?sort_dir=desc&sort_key=id&limit=1"
        found: dict[str, Any] = self.site.call("GET", path, version="2.4")["operations"][0]
        return found

    def is_writing(self) -> bool:
        """Whether an operation has got that far."""
        listed = self.site.call("GET", "/operations?state=writing", version="2.4")
        return bool(listed["operations"])

    def runs(self) -> dict[str, Any]:
        """What the API says that it runs."""
        path = f"/deployables/{self.uuid}"
        shown: dict[str, Any] = self.site.call("GET", path, version="2.4")["program"]
        return shown

    def offered(self) -> int:
        """How many of its handles Placement offers."""
        total, reserved = self.site.offered()
        return total - reserved

    def traits(self) -> set[str]:
        """Its provider's traits."""
        until(self.site.synced)
        return set(self.site.placement.below(hosts.ROOT)[RP].traits)

    def arq(self, **group: str) -> str:
        """An ARQ whose group asks for one handle of the card, and for what is given besides."""
        name = f"dp-{models.new_uuid()}"
        groups = [{"resources:FPGA": "1"} | {f"accel:{key}": val for key, val in group.items()}]
        self.site.call("POST", "/device_profiles", [{"name": name, "groups": groups}])
        created = self.site.call("POST", "/accelerator_requests", {"device_profile_name": name})
        return str(created["arqs"][0]["uuid"])

    def ask_to_bind(self, arq: str, instance: str) -> requests.Response:
        wanted = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": instance}
        patch = [{"path": f"/{key}", "op": "add", "value": val} for key, val in wanted.items()]
        return self.site.ask("PATCH", "/accelerator_requests", {arq: patch})

    def bind(self, instance: str | None = None, **group: str) -> str:
        """Begin to bind a new ARQ; return it."""
        arq = self.arq(**group)
        answer = self.ask_to_bind(arq, instance or models.new_uuid())
        assert answer.status_code == 202, answer.text
        return arq

    def state(self, arq: str) -> str:
        return str(self.site.call("GET", f"/accelerator_requests/{arq}")["state"])

    def resolved(self, arq: str) -> dict[str, Any]:
        """The ARQ, when its bind has ended."""

        def read() -> dict[str, Any] | None:
            engine.make_due()
            path = f"/accelerator_requests/{arq}"
            found: dict[str, Any] = self.site.call("GET", path, version="2.4")
            return found if found["state"] != "BindStarted" else None

        return until(read)


@pytest.fixture
def glance_line(images: GlanceServer, conf: cfg.ConfigOpts) -> Iterator[messages.Wire]:
    """What Glance is reached over; a test that cuts it asks for this before the card."""
    line = messages.Wire(images.url)
    line.join()
    conf.set_override("endpoint_override", line.url, group="glance")
    yield line
    line.cut()


@pytest.fixture
def start_card(site: Site, images: GlanceServer, tmp_path: pathlib.Path) -> Any:
    """Start the site with one card of the mode."""

    def started(mode: str, **options: object) -> Card:
        folder = str(tmp_path / "loaded")
        site.start(program_mode=mode, handles_per_device=HANDLES, state_dir=folder, **options)
        return Card(site, images)

    return started


@pytest.fixture
def single(start_card: Any) -> Card:
    """A card with one program for all its handles; it has none yet."""
    card: Card = start_card("single-program")
    return card


@pytest.fixture
def dynamic(start_card: Any) -> Card:
    """A card that is offered whatever it runs."""
    card: Card = start_card("dynamic")
    return card
