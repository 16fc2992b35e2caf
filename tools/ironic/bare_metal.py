# SPDX-License-Identifier: Apache-2.0
"""A real Ironic without users on SQLite: API and conductor in one process, fake hardware.

Run as a program it starts one, enrols and inspects nodes, and writes what Ironic answers of them
into the folder that is named: the recorded answers of the functional tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import requests

_BIN = Path(sys.executable).parent
_INTERFACES = ("bios", "boot", "console", "deploy", "firmware", "management", "power", "raid")
_CONF = """
[DEFAULT]
auth_strategy = noauth
rpc_transport = none
host = ironic-1
my_ip = 127.0.0.1
state_path = {folder}
enabled_hardware_types = fake-hardware
enabled_inspect_interfaces = agent
default_inspect_interface = agent
enabled_network_interfaces = noop
enabled_rescue_interfaces = no-rescue
enabled_storage_interfaces = noop
enabled_vendor_interfaces = fake
{interfaces}
[api]
host_ip = 127.0.0.1
port = {port}
[database]
connection = sqlite:///{folder}/ironic.sqlite
[inspector]
hooks = $default_hooks,pci-devices,accelerators
require_managed_boot = false
[conductor]
automated_clean = false
"""
_VERSION = {"X-OpenStack-Ironic-API-Version": "1.95"}
_PATIENCE = 120
_POLL = 0.1


class Ironic:
    """A process of Ironic at :attr:`url`, from :meth:`start` to :meth:`stop`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._macs = 0
        self._process: subprocess.Popen[bytes] | None = None
        interfaces = "\n".join(f"enabled_{each}_interfaces = fake" for each in _INTERFACES)
        text = _CONF.format(folder=folder, port=port, interfaces=interfaces)
        (folder / "ironic.conf").write_text(text)

    def start(self) -> None:
        """Make the schema, start the process, and wait until it serves the hardware type."""
        arguments = ["--config-file", str(self._folder / "ironic.conf")]
        with (self._folder / "ironic.log").open("ab") as log:
            subprocess.run(
                [_BIN / "ironic-dbsync", *arguments, "create_schema"],
                stdout=log,
                stderr=log,
                check=True,
            )
            self._process = subprocess.Popen(
                [_BIN / "ironic", *arguments], stdout=log, stderr=log
            )
        wait_for(self._serves)

    def _serves(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"Ironic has ended: see {self._folder}/ironic.log")
        try:
            return bool(self.call("GET", "/drivers")["drivers"])
        except requests.ConnectionError:
            return False

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a request that must succeed."""
        answer = requests.request(
            method, f"{self.url}/v1{path}", json=body, headers=_VERSION, timeout=_PATIENCE
        )
        assert answer.ok, (method, path, answer.text)
        return answer.json() if answer.content else None

    def enrol(self, name: str, **fields: object) -> str:
        """Enrol a node with a port, and make it manageable; return its UUID."""
        node = self.call("POST", "/nodes", {"driver": "fake-hardware", "name": name, **fields})
        self._macs += 1
        mac = f"52:54:00:00:00:{self._macs:02x}"
        self.call("POST", "/ports", {"node_uuid": node["uuid"], "address": mac})
        self._move(node["uuid"], "manage", "manageable")
        return str(node["uuid"])

    def inspect(self, uuid: str, pci_devices: Sequence[dict[str, Any]]) -> None:
        """Inspect a node in-band: the agent's ramdisk on it would send this."""
        self._move(uuid, "inspect", "inspect wait")
        (port,) = self.call("GET", f"/ports?node={uuid}")["ports"]
        data = {
            "inventory": {
                "interfaces": [{"name": "eth0", "mac_address": port["address"]}],
                "cpu": {"count": 4, "architecture": "x86_64"},
                "memory": {"physical_mb": 4096},
                "disks": [],
                "boot": {"current_boot_mode": "uefi", "pxe_interface": port["address"]},
                "system_vendor": {
                    "manufacturer": "ACME",
                    "product_name": "Big",
                    "serial_number": "1",
                    "firmware": {"vendor": "ACME", "version": "9.9", "build_date": "01/02/2026"},
                },
            },
            "pci_devices": list(pci_devices),
        }
        self.call("POST", f"/continue_inspection?node_uuid={uuid}", data)
        wait_for(lambda: self._state(uuid) == "manageable")

    def _move(self, uuid: str, target: str, state: str) -> None:
        self.call("PUT", f"/nodes/{uuid}/states/provision", {"target": target})
        wait_for(lambda: self._state(uuid) == state)

    def _state(self, uuid: str) -> str:
        return str(self.call("GET", f"/nodes/{uuid}?fields=provision_state")["provision_state"])


def wait_for(what: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + _PATIENCE
    while not what():
        assert time.monotonic() < end, f"not so within {_PATIENCE} s"
        time.sleep(_POLL)


def pci_device(bus: str, ids: str, class_code: str, numa: str = "0") -> dict[str, Any]:
    """A PCI function as the agent's collector ``pci-devices`` sends it."""
    vendor, product = ids.split(":")
    return {
        "vendor_id": vendor,
        "product_id": product,
        "class": class_code,
        "revision": "a1",
        "bus": bus,
        "numa_node_id": numa,
    }


#: A server with two GPUs, an FPGA card of two functions, a QAT, and what is no accelerator.
FULL = (
    pci_device("0000:00:00.0", "8086:09a2", "088000"),
    pci_device("0000:02:00.0", "1a03:2000", "030000"),
    pci_device("0000:17:00.0", "8086:1572", "020000"),
    pci_device("0000:3b:00.0", "10de:20b5", "030200"),
    pci_device("0000:5e:00.0", "10ee:5000", "120000"),
    pci_device("0000:5e:00.1", "10ee:5001", "120000"),
    pci_device("0000:6b:00.0", "8086:4940", "0b4000"),
    pci_device("0000:81:00.0", "144d:a80a", "010802", "1"),
    pci_device("0000:af:00.0", "10de:1eb8", "030200", "1"),
)
#: A server of which no driver knows the accelerator.
ODD = (pci_device("0000:c1:00.0", "1f0f:0001", "120000", "-1"),)


def of_this_machine() -> list[dict[str, Any]]:
    """The PCI functions of this machine, from the collector of Ironic's agent itself."""
    code = (
        "import json; from ironic_python_agent import inspector, utils; data = {}; "
        "inspector.collect_pci_devices_info(data, utils.AccumulatedFailures()); "
        "print(json.dumps(data.get('pci_devices', [])))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _record(folder: Path, port: int) -> None:
    with tempfile.TemporaryDirectory() as own:
        ironic = Ironic(Path(own), port)
        try:
            ironic.start()
            for name, found in (("bm-1", FULL), ("bm-2", ODD)):
                ironic.inspect(ironic.enrol(name), found)
            ironic.enrol("bm-3", extra={"cyborg_host": "compute-3"})
            fields = "fields=uuid,name,properties,extra"
            first = ironic.call("GET", f"/nodes?{fields}&limit=2")
            marker = first["nodes"][-1]["uuid"]
            second = ironic.call("GET", f"/nodes?{fields}&marker={marker}")
            answers = {"/nodes": first, f"/nodes?marker={marker}": second}
            for node in first["nodes"]:
                path = f"/nodes/{node['uuid']}/inventory"
                answers[path] = ironic.call("GET", path)
        finally:
            ironic.stop()
    text = json.dumps(answers, indent=1, sort_keys=True).replace(ironic.url, "http://ironic.example")
    (folder / "answers.json").write_text(text + "\n")


if __name__ == "__main__":
    _record(Path(sys.argv[1]), int(sys.argv[2]))
