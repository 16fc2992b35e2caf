# SPDX-License-Identifier: Apache-2.0
"""A site whose agent has the real driver of a simulated host with cards that have layouts."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from cyborg.agent import discovery
from cyborg.db import models
from cyborg.drivers import base, privileged, registry
from cyborg.drivers.nvidia import vgpu, vgpu_types
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import boots, hosts
from cyborg.tests.contract import passes
from cyborg.tests.service import Site, until

#: Starts the site with cards, a driver, its options, and perhaps files of its agent.
StartLayouts = Callable[..., "LayoutsSite"]

VERSION = "2.4"
_PATIENCE = 60


@functools.cache
def _driver(name: str, text: str) -> Any:
    """The driver of the host's agent; the functions of one host are called in one process."""
    privileged.context.set_client_mode(False)
    privileged.programming.set_client_mode(False)
    conf = passes.configured(text, [name], "host-1")
    privileged._DEV = pathlib.Path(conf.state_path, "dev")
    privileged._NVIDIA_SMI = str(pathlib.Path(conf.state_path, "nvidia-smi"))
    privileged._XBMGMT = str(pathlib.Path(conf.state_path, "xbmgmt"))
    privileged.XILINX_PARTITIONS = pathlib.Path(conf.state_path, "partitions")
    vgpu.PROC = str(pathlib.Path(conf.state_path, "proc"))
    vgpu_types.VENDORS_LIST = pathlib.Path(conf.state_path, "vgpuConfig.xml")
    return registry.load(conf).drivers[name]


def _discover(name: str, text: str) -> tuple[base.Device, ...]:
    found = discovery.Discovery("host-1", {name: _driver(name, text)}, timeout=_PATIENCE).run()
    assert found.errors == {}, found.errors
    return tuple(found.devices[name])


def _act(name: str, text: str, method: str, argument: Any) -> tuple[str, Any]:
    """What a method answers, or what it raises and why."""
    try:
        return "", getattr(_driver(name, text), method)(argument)
    except Exception as exc:  # noqa: BLE001 - whatever a driver raises
        return type(exc).__name__, str(exc)


def forget() -> None:
    """The agent of the host is started again."""
    _driver.cache_clear()


class HostsDriver:
    """The driver as the agent calls it: it runs in the process that sees the host."""

    def __init__(self, host: Any, name: str, text: str) -> None:
        self._host, self._name, self._text = host, name, text

    def discover(self, host: base.Host) -> Iterable[base.Device]:
        found: Iterable[base.Device] = self._host.call(_discover, self._name, self._text)
        return found

    def set_layout(self, target: base.ProgramTarget) -> base.Programmed:
        done: base.Programmed = self._call("set_layout", target)
        return done

    def prepare(self, handle: base.HeldHandle) -> None:
        self._call("prepare", handle)

    def clean(self, handle: base.HeldHandle) -> None:
        self._call("clean", handle)

    def _call(self, method: str, argument: Any) -> Any:
        raised, answer = self._host.call(_act, self._name, self._text, method, argument)
        if raised:
            kind = getattr(base, raised, RuntimeError)
            raise kind(answer)
        return answer


class LayoutsSite:
    """The site, as an administrator sees it; ``state`` is the folder that the agent keeps."""

    def __init__(self, site: Site, host: Any, state: pathlib.Path) -> None:
        self.site = site
        self.host = host
        self.state = state

    @property
    def card(self) -> str:
        """The address of the first card."""
        address: str = self.host.layout.cards[0]
        return address

    def deployable(self, name: str) -> dict[str, Any]:
        path = f"/deployables?name=host-1_{name}"
        (found,) = self.site.call("GET", path, version=VERSION)["deployables"]
        shown: dict[str, Any] = found
        return shown

    def layouts(self, name: str) -> dict[str, str]:
        """The layouts that a card may be given, with how many accelerators it has then."""
        shown = self.deployable(name)["attributes"].items()
        found = ((key.partition(base.LAYOUT_PREFIX), value) for key, value in shown)
        return {key[2]: value for key, value in found if key[1]}

    def ask(self, name: str, layout: str) -> Any:
        """Ask for a layout."""
        path = f"/deployables/{self.deployable(name)['uuid']}/program"
        return self.site.ask("POST", path, {"layout": layout}, VERSION)

    def give(self, name: str, layout: str) -> dict[str, Any]:
        """Have a layout given, in whatever case it is written; the operation."""
        operation = self._ended(name, layout)
        assert (operation["state"], operation["error"]) == ("succeeded", None)
        assert (self.layout(name) or "").lower() == layout.lower()
        return operation

    def give_in_vain(self, name: str, layout: str) -> str:
        """The same where it fails; why."""
        operation = self._ended(name, layout)
        assert operation["state"] == "failed"
        return str(operation["error"])

    def _ended(self, name: str, layout: str) -> dict[str, Any]:
        answer = self.ask(name, layout)
        assert answer.status_code == 202, answer.text
        path = f"/operations/{answer.json()['uuid']}"

        def read() -> dict[str, Any] | None:
            found: dict[str, Any] = self.site.call("GET", path, version=VERSION)
            return found if found["ended_at"] else None

        return self.site.hurry(read)

    def last_operation(self) -> dict[str, Any]:
        path = "/operations?sort_key=id&sort_dir=desc&limit=1"
        (last,) = self.site.call("GET", path, version=VERSION)["operations"]
        operation: dict[str, Any] = last
        return operation

    def layout(self, name: str) -> str | None:
        """What is recorded of a card."""
        function: str | None = self.deployable(name)["program"]["function_id"]
        return function

    def offered(self, name: str) -> dict[str, int]:
        """What Placement offers of a card, by resource class."""
        self.site.hurry(self.site.synced)
        shown = self.site.placement.offered(provider_uuid(f"host-1_{name}"))
        return {kind: total - reserved for kind, (total, reserved) in shown.items()}

    def traits(self, name: str) -> set[str]:
        self.site.hurry(self.site.synced)
        below = self.site.placement.below(hosts.ROOT)
        return set(below[provider_uuid(f"host-1_{name}")].traits)

    def arq(self, name: str, **group: str) -> tuple[str, str]:
        """Begin to bind an ARQ to a card; its uuid and the instance's."""
        answer, arq, instance = self.ask_for_arq(name, **group)
        assert answer.status_code == 202, answer.text
        return arq, instance

    def ask_for_arq(self, name: str, **group: str) -> tuple[Any, str, str]:
        """The same where the answer may be a refusal."""
        profile, instance = f"dp-{models.new_uuid()}", models.new_uuid()
        self.site.call("POST", "/device_profiles", [{"name": profile, "groups": [group]}])
        made = self.site.call("POST", "/accelerator_requests", {"device_profile_name": profile})
        (arq,) = made["arqs"]
        place = provider_uuid(f"host-1_{name}")
        patch = boots.patch([arq["uuid"]], instance, hostname="host-1", device_rp_uuid=place)
        answer = self.site.ask("PATCH", "/accelerator_requests", patch)
        return answer, arq["uuid"], instance

    def bound(self, arq: str) -> dict[str, str]:
        """What the guest has of the card when the bind has ended well."""

        def read() -> dict[str, Any] | None:
            found: dict[str, Any] = self.site.call("GET", f"/accelerator_requests/{arq}")
            return found if found["state"] != "BindStarted" else None

        found = self.site.hurry(read)
        assert found["state"] == "Bound", found
        info: dict[str, str] = found["attach_handle_info"]
        return info


@pytest.fixture
def start_layouts(site, conf, simulate_live, monkeypatch, tmp_path) -> StartLayouts:
    """Start the site with a simulated host that has the driver with these options.

    The texts of ``files`` are in the folder that the agent keeps; they may be run.
    """

    def start(
        cards: list[Any], name: str, text: str, files: Mapping[str, str] | None = None
    ) -> LayoutsSite:
        host, state = simulate_live({"cards": cards}), tmp_path / "agent"
        # What the kernel makes of IOMMU groups for vfio-pci.
        vfio = {f"dev/vfio/{number}": "" for number in range(200)}
        for path, content in {**vfio, **(files or {})}.items():
            file = state / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
            file.chmod(0o755)
        text = f"[DEFAULT]\nstate_path = {state}\n{text}"
        driver = HostsDriver(host, name, text)
        loaded = registry.Registry(drivers={name: driver}, errors={})
        monkeypatch.setattr(registry, "load", lambda _conf: loaded)
        conf.set_override("state_path", str(tmp_path / "state"))
        conf.set_override("discovery_interval", 2, group="agent")
        # What a report lacks is believed when the next one lacks it too.
        conf.set_override("report_interval", 2, group="agent")
        conf.set_override("pool_interval", 1, group="programming")
        site.run_services()
        one = LayoutsSite(site, host, state)
        until(lambda: site.call("GET", "/deployables")["deployables"])
        site.hurry(site.idle)
        return one

    return start
