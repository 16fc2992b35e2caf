# SPDX-License-Identifier: Apache-2.0
"""The cloud that tempest tests: Keystone, Placement and Cyborg as separate processes.

Cyborg is configured as an operator does it: tokens validated by Keystone, Placement found in the
catalogue, messages over RabbitMQ, MariaDB. Its agent has neither database nor credentials.
"""

from __future__ import annotations

import configparser
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keystoneauth1 import adapter, exceptions, session
from processes import BIN, Processes, free_ports

from cyborg.tests import keystone_server
from cyborg.tests.keystone_server import Keystone

#: The host of the one agent, and its root provider in Placement.
HOST = "tempest-host"
_KEYSTONE = Path(keystone_server.__file__).with_name("keystone_process.py")

#: Groups of options.
Options = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Servers:
    """URLs of the message broker and of two empty databases."""

    broker: str
    cyborg: str
    placement: str


def write_options(path: Path, options: Options) -> Path:
    """Write an oslo.config file."""
    parser = configparser.RawConfigParser(default_section="")
    parser.read_dict({name: dict(values) for name, values in options.items()})
    with path.open("w") as file:
        parser.write(file)
    return path


def start_keystone(processes: Processes, folder: Path) -> Keystone:
    """Start Keystone; return it when it answers."""
    file = folder / "keystone" / "known.json"
    file.parent.mkdir()
    processes.start("keystone", sys.executable, "-W", "ignore", _KEYSTONE, file)
    processes.until("Keystone", lambda: file.exists() or None)
    return Keystone(**json.loads(file.read_text()))


class Cloud:
    """Placement and Cyborg beside a running Keystone."""

    def __init__(
        self, processes: Processes, folder: Path, keystone: Keystone, servers: Servers
    ) -> None:
        self._processes = processes
        self._folder = folder
        self._keystone = keystone
        self._servers = servers
        self._placement_port, self._api_port = free_ports(2)

    def start(self) -> None:
        """Start both; return when a device that Cyborg knows is in Placement too."""
        self._register("placement", "placement", f"http://127.0.0.1:{self._placement_port}")
        # Nova appends paths to this URL, so it must contain the version.
        self._register("cyborg", "accelerator", f"http://127.0.0.1:{self._api_port}/v2")
        self._start_placement()
        self._start_cyborg()
        self._await("accelerator", "devices", 1)
        # The host's root and the device below it.
        self._await("placement", "resource_providers", 2)

    def _register(self, name: str, service_type: str, url: str) -> None:
        """Add a service to the catalogue."""
        api = self._keystone.api()
        service = {"service": {"name": name, "type": service_type}}
        made = api.post("/services", json=service).json()["service"]
        endpoint = {
            "service_id": made["id"],
            "interface": "public",
            "region_id": self._keystone.region,
            "url": url,
        }
        api.post("/endpoints", json={"endpoint": endpoint})

    def _await(self, service_type: str, collection: str, minimum: int) -> None:
        """Block until a collection of a service in the catalogue has enough items."""
        admin = self._keystone.log_in(self._keystone.admin_user, self._keystone.admin_project)
        service = adapter.Adapter(session.Session(auth=admin), service_type=service_type)

        def find() -> list[Any] | None:
            try:
                found: list[Any] = service.get(f"/{collection}").json()[collection]
            except exceptions.ClientException:
                return None
            return found if len(found) >= minimum else None

        self._processes.until(f"{minimum} {collection}", find)

    def _credentials(self) -> dict[str, object]:
        """The keystoneauth options of the services' user, which is not an administrator."""
        return {
            "auth_type": "password",
            "auth_url": self._keystone.url,
            "username": self._keystone.service_user,
            "password": self._keystone.password,
            "project_name": self._keystone.service_project,
            "user_domain_id": "default",
            "project_domain_id": "default",
            "region_name": self._keystone.region,
        }

    def _token_validation(self) -> dict[str, object]:
        """The options of keystonemiddleware."""
        return self._credentials() | {
            "www_authenticate_uri": self._keystone.url,
            "interface": "public",
            "service_token_roles": "service",
            "service_token_roles_required": True,
        }

    def _start_placement(self) -> None:
        config = self._folder / "placement"
        config.mkdir()
        database = {"connection": self._servers.placement, "sync_on_startup": True}
        options: Options = {
            "api": {"auth_strategy": "keystone"},
            "placement_database": database,
            "keystone_authtoken": self._token_validation(),
        }
        write_options(config / "placement.conf", options)
        app = ("placement.wsgi.api:application", "--bind", f"127.0.0.1:{self._placement_port}")
        self._processes.start(
            "placement", BIN / "cheroot", *app, OS_PLACEMENT_CONFIG_DIR=str(config)
        )

    def _start_cyborg(self) -> None:
        on_every_host = {"transport_url": self._servers.broker, "host": HOST}
        controller: Options = {
            "DEFAULT": on_every_host,
            "api": {"auth_strategy": "keystone", "port": self._api_port},
            "database": {"connection": self._servers.cyborg},
            "keystone_authtoken": self._token_validation(),
            # There is no nova-compute to create the root provider.
            "placement": self._credentials()
            | {"valid_interfaces": "public", "create_root_provider": True},
        }
        compute: Options = {"DEFAULT": on_every_host, "agent": {"enabled_drivers": "fake_driver"}}
        here = write_options(self._folder / "cyborg.conf", controller)
        there = write_options(self._folder / "cyborg-agent.conf", compute)
        dbsync = (BIN / "cyborg-dbsync", "--config-file", here, "upgrade")
        self._processes.run("cyborg-dbsync", *dbsync)
        for name, config in (
            ("cyborg-api", here),
            ("cyborg-conductor", here),
            ("cyborg-agent", there),
        ):
            self._processes.start(name, BIN / name, "--config-file", config)
