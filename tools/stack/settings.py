# SPDX-License-Identifier: Apache-2.0
"""The configuration of the stack's services: one function per file, with plain options."""

from __future__ import annotations

import json
import random
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cyborg.rpc import signing

REGION = "RegionOne"
#: Where pip puts the files that distributions put into /etc.
PASTE = Path(sys.prefix) / "etc"
#: The compute hosts. Each has a nova-compute and a cyborg-agent of that name.
HOSTS = ("stack-1", "stack-2")
#: WSGI services: name to the module that uWSGI loads, and the service type in the catalogue.
WSGI = {
    "keystone": ("keystone.wsgi.api", "identity"),
    "placement": ("placement.wsgi.api", "placement"),
    "glance": ("glance.wsgi.api", "image"),
    "neutron": ("neutron.wsgi.api", "network"),
    "nova": ("nova.wsgi.osapi_compute", "compute"),
    "cyborg": ("cyborg.wsgi.api", "accelerator"),
}
DATABASES = (
    "keystone", "placement", "glance", "neutron", "nova_api", "nova", "nova_cell0", "cyborg"
)  # fmt: skip

#: The network of network cards that have accelerators.
PHYSICAL_NETWORK = "physnet1"

#: Groups of options.
Options = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Known:
    """Values that are chosen once for a state directory."""

    password: str
    ports: Mapping[str, int]

    def url(self, service: str) -> str:
        """The URL of a WSGI service."""
        return f"http://127.0.0.1:{self.ports[service]}"


def known(state: Path) -> Known:
    """The values of a state directory; the first call chooses them."""
    file = state / "known.json"
    if not file.exists():
        fresh = Known(secrets.token_hex(12), dict(zip(WSGI, _free_ports(len(WSGI)), strict=True)))
        file.write_text(json.dumps(asdict(fresh)))
        file.chmod(0o600)
    return Known(**json.loads(file.read_text()))


def _free_ports(count: int) -> list[int]:
    """Free ports of the loopback, outside the range of tools/services.sh."""
    listening: list[socket.socket] = []
    while len(listening) < count:
        try:
            listening.append(socket.create_server(("127.0.0.1", random.randint(16000, 19999))))
        except OSError:
            continue
    ports = [held.getsockname()[1] for held in listening]
    for held in listening:
        held.close()
    return ports


def write(path: Path, *parts: Options) -> Path:
    """Write an oslo.config file; a later part overrides an earlier one, with None for no value.

    A tuple is an option that is given several times.
    """
    merged: dict[str, dict[str, object]] = {}
    for part in parts:
        for group, options in part.items():
            merged.setdefault(group, {}).update(options)
    lines = []
    for group, options in merged.items():
        lines.append(f"[{group}]")
        for name, value in options.items():
            each = value if isinstance(value, tuple) else () if value is None else (value,)
            lines += [f"{name} = {one}".replace("\n", "\n\t") for one in each]
    path.write_text("\n".join([*lines, ""]))
    return path


class Settings:
    """The configuration files below ``folder``."""

    def __init__(self, folder: Path, chosen: Known, broker: str, database: str) -> None:
        """``database`` is a URL with ``{}`` for the name of the database."""
        self._folder = folder
        self._known = chosen
        self._broker = broker
        self._database = database

    def folder(self, service: str) -> Path:
        """The configuration directory of a service."""
        path = self._folder / service
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _user(self, service: str) -> dict[str, object]:
        """The keystoneauth options of a service's user."""
        return {
            "auth_type": "password",
            "auth_url": self._known.url("keystone"),
            "username": service,
            "password": self._known.password,
            "project_name": "service",
            "user_domain_id": "default",
            "project_domain_id": "default",
            "region_name": REGION,
            "valid_interfaces": "public",
        }

    def _validation(self, service: str) -> dict[str, object]:
        """The options of keystonemiddleware."""
        return self._user(service) | {
            "www_authenticate_uri": self._known.url("keystone"),
            "interface": "public",
            "service_token_roles": "service",
            "service_token_roles_required": True,
        }

    def keystone(self) -> Path:
        """Keystone, with keys of its own."""
        folder = self.folder("keystone")
        keys = {name: folder / name for name in ("fernet-keys", "credential-keys")}
        return write(
            folder / "keystone.conf",
            {
                "DEFAULT": {"public_endpoint": self._known.url("keystone")},
                "database": {"connection": self._database.format("keystone")},
                "fernet_receipts": {"key_repository": keys["fernet-keys"]},
                "fernet_tokens": {"key_repository": keys["fernet-keys"]},
                "credential": {"key_repository": keys["credential-keys"]},
                "identity": {"password_hash_rounds": 4},
                # Several services share one user; its logins need no audit.
                "oslo_messaging_notifications": {"driver": "noop"},
            },
        )

    def placement(self) -> Path:
        """Placement."""
        return write(
            self.folder("placement") / "placement.conf",
            {
                "api": {"auth_strategy": "keystone"},
                "placement_database": {"connection": self._database.format("placement")},
                "keystone_authtoken": self._validation("placement"),
            },
        )

    def glance(self) -> Path:
        """Glance with a directory as its store."""
        folder = self.folder("glance")
        stores = {name: folder / name for name in ("images", "staging", "tasks")}
        for path in stores.values():
            path.mkdir(exist_ok=True)
        return write(
            folder / "glance-api.conf",
            {
                "DEFAULT": {
                    "enabled_backends": "fs:file",
                    "worker_self_reference_url": self._known.url("glance"),
                },
                "database": {"connection": self._database.format("glance")},
                "fs": {"filesystem_store_datadir": stores["images"]},
                "glance_store": {"default_backend": "fs"},
                "os_glance_staging_store": {"filesystem_store_datadir": stores["staging"]},
                "os_glance_tasks_store": {"filesystem_store_datadir": stores["tasks"]},
                "keystone_authtoken": self._validation("glance"),
                "paste_deploy": {
                    "flavor": "keystone",
                    "config_file": PASTE / "glance" / "glance-api-paste.ini",
                },
            },
        )

    def neutron(self) -> Path:
        """Neutron's API without agents, which Nova needs for servers without a network."""
        folder = self.folder("neutron")
        return write(
            folder / "neutron.conf",
            {
                "DEFAULT": {
                    "transport_url": self._broker,
                    "core_plugin": "ml2",
                    "service_plugins": "",
                    "auth_strategy": "keystone",
                    "api_paste_config": PASTE / "neutron" / "api-paste.ini",
                    "state_path": folder,
                    "notify_nova_on_port_status_changes": False,
                    "notify_nova_on_port_data_changes": False,
                },
                "database": {"connection": self._database.format("neutron")},
                "keystone_authtoken": self._validation("neutron"),
                "oslo_concurrency": {"lock_path": folder / "lock"},
                "ml2": {
                    "type_drivers": "local,vlan",
                    "tenant_network_types": "local",
                    # This driver binds ports only on hosts with its agent; there are none.
                    "mechanism_drivers": "sriovnicswitch",
                    "extension_drivers": "port_device_profile",
                },
                "ml2_type_vlan": {"network_vlan_ranges": f"{PHYSICAL_NETWORK}:100:199"},
            },
        )

    def nova(self) -> Sequence[Path]:
        """Two files: one for every Nova service, one for those with a database."""
        folder = self.folder("nova")
        for name in ("instances", "lock"):
            (folder / name).mkdir(exist_ok=True)
        shutil.copy(PASTE / "nova" / "api-paste.ini", folder)
        every = write(
            folder / "nova.conf",
            {
                "DEFAULT": {
                    "transport_url": self._broker,
                    "state_path": folder,
                    "instances_path": folder / "instances",
                    "my_ip": "127.0.0.1",
                    "arq_binding_timeout": 180,
                    "service_down_time": 60,
                },
                "keystone_authtoken": self._validation("nova"),
                "service_user": self._user("nova") | {"send_service_user_token": True},
                "placement": self._user("nova"),
                "neutron": self._user("nova"),
                "glance": {"region_name": REGION, "valid_interfaces": "public"},
                "cyborg": {
                    "region_name": REGION,
                    "valid_interfaces": "public",
                    # As the installation guide has it.
                    "connect_retries": 5,
                    "status_code_retries": 5,
                },
                "vnc": {"enabled": False},
                "conductor": {"workers": 1},
                "scheduler": {"workers": 1, "discover_hosts_in_cells_interval": 5},
                "quota": {"instances": -1, "cores": -1, "ram": -1},
                "filter_scheduler": {
                    # As the page about scheduling has them.
                    "available_filters": (
                        "nova.scheduler.filters.all_filters",
                        "cyborg.nova.weigher.AcceleratorFilter",
                    ),
                    "enabled_filters": "ComputeFilter,ComputeCapabilitiesFilter,"
                    "ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
                    "ServerGroupAffinityFilter,AcceleratorFilter",
                    "weight_classes": "nova.scheduler.weights.all_weighers,"
                    "cyborg.nova.weigher.AcceleratorWeigher",
                    # Tests have builds fail, and Nova would avoid such a host above all else.
                    "build_failure_weight_multiplier": 0,
                },
                # More than all of Nova's own weighers together.
                # A busy machine is slow.
                "cyborg_weigher": {"multiplier": 20, "timeout": 30, "pause": 1},
                "notifications": {"notification_format": "versioned"},
                "oslo_messaging_notifications": {"driver": "messagingv2"},
                "oslo_concurrency": {"lock_path": folder / "lock"},
            },
        )
        databases = write(
            folder / "nova-db.conf",
            {
                "database": {"connection": self._database.format("nova")},
                "api_database": {"connection": self._database.format("nova_api")},
            },
        )
        return [every, databases]

    def compute(self, host: str) -> Path:
        """One nova-compute with fake guests."""
        folder = self.folder(f"compute-{host}")
        return write(
            folder / "compute.conf",
            {
                "DEFAULT": {
                    "host": host,
                    "state_path": folder,
                    "compute_driver": "fake.StackDriver",
                },
            },
        )

    def _deployment_key(self) -> Path:
        """The private key of the conductors, made at the first call."""
        path = self.folder("cyborg") / "conductor.pem"
        if not path.exists():
            path.write_bytes(signing.make_private())
        return path

    def cyborg(self, more: Options | None = None) -> Path:
        """The API and the conductors."""
        return write(
            self.folder("cyborg") / "cyborg.conf",
            {
                "DEFAULT": {"transport_url": self._broker, "host": "stack-control"},
                "database": {"connection": self._database.format("cyborg")},
                "keystone_authtoken": self._validation("cyborg"),
                "placement": self._user("cyborg"),
                "nova": self._user("cyborg"),
                "glance": self._user("cyborg"),
                "nova_watcher": self._user("cyborg"),
                "agent": {"require_host_keys": True},
                # Short, because tests wait for it.
                "conductor": {
                    "signing_key_file": self._deployment_key(),
                    "instance_audit_interval": 5,
                    "instance_grace": 10,
                    "allocation_audit_interval": 5,
                    "placement_audit_interval": 10,
                    "arq_expiry": 120,
                    # A minute less than Nova waits.
                    "bind_deadline": 120,
                },
            },
            more or {},
        )

    def agent(self, host: str, more: Options | None = None) -> Path:
        """The agent of one host: no database, and only the credentials to read bitstreams."""
        folder = self.folder(f"agent-{host}")
        conductors = signing.public_text(signing.load(self._deployment_key()))
        return write(
            folder / "cyborg.conf",
            {
                "DEFAULT": {
                    "transport_url": self._broker,
                    "host": host,
                    "state_path": folder,
                },
                "agent": {
                    "require_host_keys": True,
                    "conductor_public_keys": conductors,
                    "enabled_drivers": "fake_driver",
                    "resource_provider_name": host,
                    "report_interval": 10,
                },
                "glance": self._user("cyborg"),
                "programming": {"cache_path": folder / "bitstreams"},
                "fake_driver": {
                    "devices": 1,
                    "handles_per_device": 8,
                    "program_mode": "dynamic",
                    "state_dir": folder / "loaded",
                },
            },
            more or {},
        )

    def upstream(self, name: str, host: str, installed: Path, node: str | None = None) -> Path:
        """The released upstream, in the folder where it is installed.

        API and conductor, or with ``node`` the agent of that compute host. If its hosts have names
        of their own, its providers stand beside ours.
        """
        options: dict[str, dict[str, object]] = {
            "DEFAULT": {"transport_url": self._broker, "host": host},
            "database": {"connection": self._database.format("cyborg_upstream")},
            "keystone_authtoken": self._validation("cyborg"),
            "placement": self._user("cyborg"),
            "nova": self._user("cyborg"),
            "agent": {"enabled_drivers": "fake_driver"},
            "api": {"api_paste_config": installed / "etc" / "cyborg" / "api-paste.ini"},
        }
        if node is not None:
            options["agent"]["resource_provider_name"] = node
        return write(self.folder(name) / "cyborg.conf", options)
