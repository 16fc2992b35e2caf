# SPDX-License-Identifier: Apache-2.0
"""A node of Kubernetes on the host of a site, between stand-ins for its API server and kubelet."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_config import cfg

from cyborg.kube import resource_claims, service
from cyborg.tests import kubelet
from cyborg.tests.kube_server import KubeServer
from cyborg.tests.service import Site

NODE = "node-1"
VERSION = "2.4"


class Node:
    """A node of Kubernetes on the host of the site; its driver can be started again."""

    def __init__(
        self, site: Site, cluster: KubeServer, registry: pathlib.Path, cdi: pathlib.Path
    ) -> None:
        self.site = site
        self.cluster = cluster
        self.registry = registry
        self.cdi = cdi
        self.driver: service.KubeletPlugin | None = None
        self._plugins: list[kubelet.Plugin] = []

    def taint(self, what: str = "host", reason: str = "kubernetes") -> None:
        name = "host-1" if what == "host" else self.device["uuid"]
        self.site.call("POST", f"/{what}s/{name}/taint", {"reason": reason}, VERSION)
        self.look()

    @property
    def device(self) -> dict[str, Any]:
        found: dict[str, Any] = self.site.call("GET", "/devices", version=VERSION)["devices"][0]
        return found

    def start(self) -> kubelet.Plugin:
        """Start the driver, and have the kubelet find it."""
        self.driver = service.KubeletPlugin(self.site.conf)
        self.driver.start()
        plugin = kubelet.register(self.registry)
        self._plugins.append(plugin)
        return plugin

    def stop(self) -> None:
        for plugin in self._plugins:
            plugin.close()
        self._plugins.clear()
        if self.driver is not None:
            self.driver.stop()
        self.driver = None

    def look(self) -> None:
        if self.driver is not None:
            self.driver._loops[0].wake()

    def look_twice(self) -> None:
        assert self.driver is not None
        for _ in range(2):
            self.driver._look()

    def see(self, condition: Callable[[], Any]) -> Any:
        """Have it look until that is true."""

        def looking() -> Any:
            self.look()
            return condition()

        return self.site.hurry(looking)

    def devices(self) -> list[str]:
        """The names of the published devices, when there are some."""
        names: list[str] = self.see(lambda: sorted(self.cluster.devices()))
        return names

    def taints(self) -> set[tuple[str, str]]:
        """The taints that all devices have."""
        each = [
            {(taint["key"], taint["effect"]) for taint in device.get("taints", ())}
            for device in self.cluster.devices().values()
        ]
        return set.intersection(*each) if each else set()

    def left(self) -> list[int]:
        return list(self.cluster.counters().values())

    def files(self) -> int:
        return len(list(self.cdi.glob("*.json")))

    def consumer(self, uid: str) -> str:
        return resource_claims.consumer_of(self.site.conf, uid)

    def allocation(self, uid: str) -> Any:
        answer = self.site.ask("GET", f"/allocations/{self.consumer(uid)}", version=VERSION)
        return answer.json() if answer.status_code == 200 else None


@pytest.fixture
def node(site: Site, conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> Iterator[Node]:
    """A node that is not started; its device has four accelerators."""
    cluster = KubeServer(NODE)
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="kube") as name:
        folder = pathlib.Path(name)
        (folder / "registry").mkdir()
        config = tmp_path / "kubeconfig"
        cluster.write_kubeconfig(config)
        options = {
            "auth_type": "none",
            "endpoint_override": site.endpoint,
            "node_name": NODE,
            "kubeconfig": str(config),
            "plugins_dir": str(folder / "plugins"),
            "registry_dir": str(folder / "registry"),
        }
        for option, value in options.items():
            conf.set_override(option, value, group="kube")
        conf.set_override("cdi_dir", str(tmp_path / "cdi"), group="agent")
        for option in ("discovery_interval", "report_interval"):
            conf.set_override(option, 1, group="agent")
        made = Node(site, cluster, folder / "registry", tmp_path / "cdi")
        yield made
        made.stop()
        cluster.stop()


@pytest.fixture
def tainted(node: Node) -> Node:
    """The same, whose host is Kubernetes'; its agent runs, and the driver does not."""
    node.site.start(handles_per_device=4)
    node.taint()
    return node


def ask_as(site: Site, consumer: str) -> int:
    """Ask for an accelerator for somebody else than Kubernetes; the status of the answer."""
    who = {"uuid": consumer, "type": "JOB"}
    body = {"consumer": who, "groups": [{"resources:FPGA": "1"}]}
    return site.ask("POST", "/allocations", body, VERSION).status_code
