# SPDX-License-Identifier: Apache-2.0
"""``cyborg-cni`` as a container runtime runs it, in real network namespaces, against the API."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cyborg.tests import nic_card
from cyborg.tests.nic_card import Card, ip
from cyborg.tests.service import Site
from cyborg.tests.standalone_site import TIMEOUT, forks

pytestmark = pytest.mark.slow

VERSION = "2.4"
ADDRESSES = ["0000:0c:00.1", "0000:0c:00.2"]
CONFIG: dict[str, Any] = {
    "cniVersion": "1.1.0", "name": "fast", "type": "cyborg-cni", "deviceProfile": "nic"
}
MAC = "02:00:5e:00:53:01"
SETTINGS: dict[str, Any] = {"vlan": 100, "mac": MAC, "spoofCheck": False, "mtu": 1400}


@dataclass
class Runtime:
    """A container runtime on the host of the site."""

    site: Site
    card: Card
    folder: pathlib.Path
    pods: list[str] = field(default_factory=list)

    def pod(self) -> str:
        """A new network namespace, by its path."""
        name = f"cy-{self.card.tag}-{len(self.pods)}"
        ip("netns", "add", name)
        self.pods.append(name)
        return f"/run/netns/{name}"

    def run(self, command: str, netns: str = "", *, code: int = 0, **config: Any) -> Any:
        """The answer to a command, which fails with that code."""
        environment = {
            "PATH": f"{self.card.bin}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": config.pop("container", "c0"),
            "CNI_IFNAME": config.pop("ifname", "net1"),
            "CNI_NETNS": netns,
            "CNI_ARGS": config.pop("args", "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b"),
        }
        text = json.dumps({**CONFIG, "configFile": str(self.folder / "cyborg.conf"), **config})
        said = self.folder / "said"
        given = (self.card.devices, environment, text, said)
        # A fork takes a tenth of the time of a start.
        process = forks().Process(target=nic_card.be_plugin, args=given, daemon=True)
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode == bool(code), said.read_text()
        answer = json.loads(said.read_text() or "null")
        assert (answer or {}).get("code", 0) == code, answer
        return answer

    def allocations(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.site.call("GET", "/allocations", version=VERSION)[
            "allocations"
        ]
        return found

    def files(self) -> list[str]:
        return sorted(each.name for each in (self.folder / "state").glob("*.json"))

    def assert_clean(self) -> None:
        """Check that all functions are on the host as they were, and nothing is held."""
        for number, name in enumerate(self.card.names):
            link = self.card.link(name)
            assert link is not None
            assert (link["mtu"], link["address"]) == (1500, self.card.macs[number])
            assert "PROMISC" not in link["flags"]
            enforced = self.card.enforced(number)
            assert enforced["spoofchk"] is True
            assert enforced.get("vlan_list", [{"vlan": 0}])[0]["vlan"] == 0
            assert enforced["address"] in {"00:00:00:00:00:00", self.card.macs[number]}
        assert self.files() == []
        assert self.allocations() == []


@pytest.fixture
def runtime(site: Site, tmp_path: pathlib.Path) -> Iterator[Runtime]:
    site.start(handles_per_device=2)
    groups = [{"resources:FPGA": "1"}]
    site.call("POST", "/device_profiles", [{"name": "nic", "groups": groups}])
    (tmp_path / "cyborg.conf").write_text(
        f"[DEFAULT]\nhost = host-1\n[cni]\nauth_type = none\nendpoint_override = {site.endpoint}\n"
        f"state_dir = {tmp_path}/state\n"
    )
    made = Runtime(site, Card(tmp_path, ADDRESSES), tmp_path)
    try:
        yield made
    finally:
        for name in made.pods:
            subprocess.run([nic_card._REAL, "netns", "del", name], check=False)
        made.card.remove()


def test_a_life_of_an_interface(runtime: Runtime) -> None:
    card, netns = runtime.card, runtime.pod()
    runtime.run("STATUS", **SETTINGS)
    given = runtime.run("ADD", netns, **SETTINGS)
    assert given == {
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "net1", "mac": MAC, "sandbox": netns, "mtu": 1400, "pciID": ADDRESSES[0]}
        ],
    }
    inside = card.link("net1", pathlib.Path(netns).name)
    assert inside is not None
    assert (inside["address"], inside["mtu"], "UP" in inside["flags"]) == (MAC, 1400, True)
    assert card.link(card.names[0]) is None
    enforced = card.enforced(0)
    assert (enforced["address"], enforced["spoofchk"]) == (MAC, False)
    assert enforced["vlan_list"] == [{"vlan": 100}]
    (allocation,) = runtime.allocations()
    assert (allocation["consumer"]["type"], allocation["consumer"]["name"]) == ("CNI", "a/b")

    runtime.run("CHECK", netns, prevResult=given, **SETTINGS)
    told = runtime.run("CHECK", netns, code=100, **SETTINGS | {"mtu": 1300, "vlan": 5})
    assert "mtu is 1400, not 1300; vlan is 100, not 5" in told["msg"]
    runtime.run("ADD", netns, code=100, **SETTINGS)

    # A pod may do as it likes with what it has.
    pod = pathlib.Path(netns).name
    for words in ("name x0", "address 02:00:5e:00:53:99 mtu 1280 promisc on"):
        link = "net1" if words.startswith("name") else "x0"
        ip("-n", pod, "link", "set", "dev", link, "down")
        ip("-n", pod, "link", "set", "dev", link, *words.split())
    assert "no interface net1" in runtime.run("CHECK", netns, code=100, **SETTINGS)["msg"]
    for _ in range(2):
        runtime.run("DEL", netns)
    runtime.assert_clean()


def test_what_is_left_by_a_crash_is_taken_back(runtime: Runtime) -> None:
    """Each time another step fails, and with it the undoing; DEL and GC may come twice."""
    card = runtime.card
    steps = (("vf", "vlan"), ("mtu", "1400"), ("netns",), ("up",))
    for step, command in zip(steps, ("DEL", "GC", "GC", "DEL"), strict=True):
        netns = runtime.pod()
        card.fail(*step)
        runtime.run("ADD", netns, code=5, **SETTINGS)
        card.fail()
        for _ in range(2):
            runtime.run(command, "")
        runtime.assert_clean()


def test_gc_keeps_what_is_valid_and_what_is_of_others(runtime: Runtime) -> None:
    mine, other = runtime.pod(), runtime.pod()
    runtime.run("ADD", mine)
    runtime.run("ADD", other, container="c1", name="other")
    valid: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": "c0", "ifname": "net1"}]}
    runtime.run("GC", **valid)
    assert runtime.files() == ["fast@c0@net1.json", "other@c1@net1.json"]
    # A third has no room, and leaves nothing.
    told = runtime.run("ADD", runtime.pod(), container="c2", code=11)
    assert "There is no room" in told["msg"]
    valid["cni.dev/valid-attachments"].clear()
    runtime.run("GC", **valid)
    assert runtime.files() == ["other@c1@net1.json"]
    runtime.run("DEL", other, container="c1", name="other")
    runtime.assert_clean()


def test_a_named_allocation_stays(runtime: Runtime) -> None:
    uuid = "5c1b2b9c-6a1e-4d6e-9a55-6a4d2f0e8a11"
    body = {
        "consumer": {"uuid": uuid, "type": "PROXY"},
        "parts": [{"device_profile_name": "nic", "count": 2}],
    }
    runtime.site.call("POST", "/allocations", body, VERSION)
    first, second = runtime.pod(), runtime.pod()
    given = [
        runtime.run("ADD", first, allocation=uuid),
        runtime.run("ADD", second, container="c1", args=f"CYBORG_ALLOCATION={uuid}"),
    ]
    assert [each["interfaces"][0]["pciID"] for each in given] == ADDRESSES
    told = runtime.run("ADD", runtime.pod(), container="c2", allocation=uuid, code=100)
    assert "has no free function" in told["msg"]
    runtime.run("DEL", first, allocation=uuid)
    runtime.run("DEL", second, container="c1")
    assert [each["uuid"] for each in runtime.allocations()] == [uuid]
    runtime.site.call("DELETE", f"/allocations/{uuid}", version=VERSION)
    told = runtime.run("ADD", first, allocation=uuid, code=11)
    assert "404" in told["msg"]
    runtime.assert_clean()


def test_a_namespace_that_is_gone_holds_nothing(runtime: Runtime) -> None:
    netns = runtime.pod()
    runtime.run("ADD", netns, **SETTINGS)
    runtime.site.call("DELETE", f"/allocations/{runtime.allocations()[0]['uuid']}", version=VERSION)
    assert "is gone" in runtime.run("CHECK", netns, code=100, **SETTINGS)["msg"]
    # Veth interfaces die with the namespace, so this one is saved before.
    pod, card = pathlib.Path(netns).name, runtime.card
    home = f"/proc/{os.getpid()}/ns/net"
    ip("-n", pod, "link", "set", "dev", "net1", "netns", home, "name", f"cx{card.tag}")
    ip("netns", "del", pod)
    ip("netns", "add", pod)  # another one at the same path
    nic_card._follow(json.loads(card.facts.read_text()))
    runtime.run("DEL", netns)
    runtime.assert_clean()


class _Odd(http.server.BaseHTTPRequestHandler):
    """Answers everything with an object that says nothing."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_odd_answers_and_odd_files_are_errors(runtime: Runtime) -> None:
    config, netns = runtime.folder / "cyborg.conf", runtime.pod()
    text = config.read_text()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v2"
        config.write_text(text.replace(runtime.site.endpoint, url))
        assert "Cyborg answers oddly" in runtime.run("ADD", netns, code=11)["msg"]
        # Nobody has said that the allocation is given back.
        assert runtime.files() == ["fast@c0@net1.json"]
        server.shutdown()
    config.write_text(text)
    runtime.run("DEL", netns)
    (runtime.folder / "state" / "fast@c0@net1.json").write_text("{}")
    assert "is damaged" in runtime.run("DEL", netns, code=5)["msg"]
    (runtime.folder / "state" / "fast@c0@net1.json").unlink()
    runtime.assert_clean()


#: What a configuration or the environment says otherwise, the code of the error, and its text.
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"cniVersion": "0.1.0"}, 1, "cniVersion must be one of 0.4.0, 1.0.0, 1.1.0."),
    ({"ipam": {"type": "x"}}, 2, 'ipam: {"type": "x"} is not supported'),
    ({"container": "../x"}, 4, "CNI_CONTAINERID is missing"),
    ({"ifname": "a/b"}, 4, "CNI_IFNAME is missing"),
    ({"netns": "/run/netns/nonesuch"}, 4, "there is no /run/netns/nonesuch"),
    ({"name": "a/b"}, 7, "name must be letters"),
    ({"vlan": 5000}, 7, "vlan must be a number from 0 to 4094."),
    ({"mtu": True}, 7, "mtu must be a number"),
    ({"spoofCheck": "no"}, 7, "spoofCheck must be true or false."),
    ({"args": "MAC=01:00:5e:00:00:01"}, 7, "mac must be an address"),
    ({"deviceProfile": "none"}, 11, "none"),
    ({"configFile": "/nonesuch"}, 7, "/nonesuch"),
]


def test_what_makes_no_sense_is_refused(runtime: Runtime) -> None:
    pod = runtime.pod()
    for changes, code, told in REFUSED:
        answer = runtime.run("ADD", code=code, **{"netns": pod, **changes})
        assert told in answer["msg"]
        assert answer["cniVersion"] == changes.get("cniVersion", "1.1.0")
    runtime.assert_clean()


def test_versions_and_status(runtime: Runtime, tmp_path: pathlib.Path) -> None:
    # As a runtime starts it. No file is read for that.
    command = [sys.executable, "-m", "cyborg.cmd.cni"]
    asked = '{"cniVersion": "1.1.0", "configFile": "/nonesuch"}'
    own = {"CNI_COMMAND": "VERSION", "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    answer = json.loads(subprocess.check_output(command, env=own, input=asked, text=True))
    assert answer == {"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}
    assert "no device profile x" in runtime.run("STATUS", deviceProfile="x", code=50)["msg"]
    text = (tmp_path / "cyborg.conf").read_text().replace("127.0.0.1", "127.0.0.99")
    (tmp_path / "cyborg.conf").write_text(text)
    assert "cannot be used" in runtime.run("STATUS", code=50)["msg"]
    before = {"interfaces": [{"name": "eth0"}], "ips": [{"address": "10.0.0.2/24", "interface": 0}]}
    (tmp_path / "cyborg.conf").write_text(text.replace("127.0.0.99", "127.0.0.1"))
    netns = runtime.pod()
    given = runtime.run("ADD", netns, cniVersion="1.0.0", prevResult=before)
    assert given["ips"] == before["ips"]
    assert given["interfaces"] == [
        {"name": "eth0"}, {"name": "net1", "mac": runtime.card.macs[0], "sandbox": netns}
    ]
    runtime.run("DEL", netns, cniVersion="1.0.0")
