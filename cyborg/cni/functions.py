# SPDX-License-Identifier: Apache-2.0
"""NIC functions: taken into a namespace with settings, and given back as they were found."""

from __future__ import annotations

import pathlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cyborg.cni import links

_DEVICES = pathlib.Path("/sys/bus/pci/devices")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NO_MAC = "00:00:00:00:00:00"
#: Seconds until the kernel has brought back what was in a namespace that is gone.
_RETURN = 2.0
_POLL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings for a function; what is None stays as it is."""

    mac: str | None = None
    mtu: int | None = None
    vlan: int | None = None
    spoof_check: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The port of a virtual function, and what it enforces on that function."""

    name: str
    number: int
    mac: str
    vlan: int
    qos: int
    spoof_check: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NicFunction:
    """A function as it was found."""

    address: str
    name: str
    mac: str
    mtu: int
    is_up: bool
    port: Port | None


def address_of(info: Mapping[str, str]) -> str | None:
    """The address in an attach handle; None if it is no PCI function."""
    parts = [info.get(name, "") for name in ("domain", "bus", "device", "function")]
    address = f"{parts[0]}:{parts[1]}:{parts[2].zfill(2)}.{parts[3]}"
    return address if _ADDRESS.fullmatch(address) else None


def see(address: str) -> NicFunction | None:
    """The function as it is now; None if the host has no network interface of it."""
    name = _interface(address)
    link = None if name is None else links.find(None, name=name)
    if name is None or link is None:
        return None
    return NicFunction(
        address=address,
        name=name,
        mac=link["address"],
        mtu=link["mtu"],
        is_up="UP" in link["flags"],
        port=_port(address),
    )


def put_in(function: NicFunction, wanted: Settings, netns: str, name: str) -> int:
    """Give a function to a namespace with its settings, and return its index there."""
    if function.port is not None and (words := _enforced(wanted)):
        _set_on_port(function.port, *words)
    links.change(function.name, "down")
    own = [*_pair("address", wanted.mac), *_pair("mtu", wanted.mtu)]
    if own:
        links.change(function.name, *own)
    links.move_in(function.name, netns, name)
    links.change(name, "up", netns=netns)
    link = links.find(netns, name=name)
    if link is None:
        raise links.LinkFailed(f"Interface {name} has left {netns}.")
    return int(link["ifindex"])


def differences(function: NicFunction, wanted: Settings, netns: str, name: str) -> list[str]:
    """Sentences on each fact that is not as :func:`put_in` has left it."""
    link = links.find(netns, name=name)
    if link is None:
        return [f"there is no interface {name}"]
    seen = {"mac": link["address"], "mtu": link["mtu"]}
    expected: dict[str, Any] = {"mac": wanted.mac or function.mac, "mtu": wanted.mtu}
    if function.port is not None:
        enforced = _port(function.address)
        if enforced is None:
            return [f"port {function.port.name} enforces nothing on function {function.address}"]
        seen |= {"vlan": enforced.vlan, "spoofCheck": enforced.spoof_check}
        expected |= {"vlan": wanted.vlan, "spoofCheck": wanted.spoof_check}
    return [
        f"{key} is {seen[key]}, not {value}"
        for key, value in expected.items()
        if value is not None and seen[key] != value
    ]


def take_back(function: NicFunction, netns: str | None, name: str, index: int | None) -> None:
    """Bring a function back to the host as it was found; again, if it is asked for again."""
    if netns is not None:
        link = links.find(netns, name=name, index=index)
        if link is not None:
            links.change(link["ifname"], "down", netns=netns)
            links.move_out(link["ifname"], netns, function.name)
    # First of all: a function may not change an address that its port has set.
    if function.port is not None:
        _restore(function.port, function.mac)
    present = _await_interface(function.address)
    if present is not None:
        links.change(present, "down", "promisc", "off", "allmulticast", "off", "xdp", "off")
        if present != function.name:
            links.change(present, "name", function.name)
        links.change(function.name, "address", function.mac, "mtu", str(function.mtu))
        if function.is_up:
            links.change(function.name, "up")


def _restore(port: Port, mac: str) -> None:
    # Drivers refuse to enforce no address, which is what many find; its own is the same to them.
    enforced = Settings(
        mac=mac if port.mac == _NO_MAC else port.mac, spoof_check=port.spoof_check
    )
    vlan = ("vlan", str(port.vlan), "qos", str(port.qos))
    _set_on_port(port, *vlan, *_enforced(enforced))


def _await_interface(address: str) -> str | None:
    until = time.monotonic() + _RETURN
    while (name := _interface(address)) is None and time.monotonic() < until:
        if not (_DEVICES / address).exists():
            break
        time.sleep(_POLL)
    return name


def _interface(address: str) -> str | None:
    folder = _DEVICES / address / "net"
    return min((each.name for each in folder.iterdir()), default=None) if folder.exists() else None


def _port(address: str) -> Port | None:
    """The port of a function, and what it enforces now; None if it is no virtual function."""
    parent = _DEVICES / address / "physfn"
    for link in parent.glob("virtfn*"):
        if link.resolve().name == address:
            return _enforcing(parent, int(link.name.removeprefix("virtfn")))
    return None


def _enforcing(parent: pathlib.Path, number: int) -> Port:
    for name in sorted(each.name for each in (parent / "net").glob("*")):
        facts = links.find(None, name=name) or {}
        for each in facts.get("vfinfo_list", ()):
            if each["vf"] == number:
                vlan = (each.get("vlan_list") or [each])[0]
                return Port(
                    name=name,
                    number=number,
                    mac=each.get("address") or each["mac"],
                    vlan=vlan.get("vlan", 0),
                    qos=vlan.get("qos", 0),
                    spoof_check=each.get("spoofchk"),
                )
    raise links.LinkFailed(f"No port says what it enforces on virtual function {number}.")


def _enforced(wanted: Settings) -> list[str]:
    check = None if wanted.spoof_check is None else "on" if wanted.spoof_check else "off"
    return [
        *_pair("mac", wanted.mac),
        *_pair("vlan", wanted.vlan),
        *_pair("spoofchk", check),
    ]


def _set_on_port(port: Port, *words: str) -> None:
    links.change(port.name, "vf", str(port.number), *words)


def _pair(word: str, value: object) -> list[str]:
    return [] if value is None else [word, str(value)]
