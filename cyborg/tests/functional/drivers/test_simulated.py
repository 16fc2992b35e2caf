# SPDX-License-Identifier: Apache-2.0
"""The simulated hosts themselves: unmodified pyudev finds what the YAML files say."""

from __future__ import annotations

import pathlib

import pytest
import pyudev

from cyborg.tests import service
from cyborg.tests.simulated import cards
from cyborg.tests.simulated.listed import functions, listen

HOSTS = sorted(path.stem for path in (cards.DATA / "hosts").glob("*.yaml"))


def children(subsystem: str) -> dict[str, str | None]:
    """The devices of a class, each with the function that it is on."""
    found = {}
    for device in pyudev.Context().list_devices(subsystem=subsystem):
        parent = device.find_parent("pci")
        found[device.sys_name] = parent.sys_name if parent else None
    return found


def file(path: str) -> str:
    return pathlib.Path(path).read_text()


@pytest.mark.parametrize("name", HOSTS)
def test_pyudev_finds_every_function_as_the_file_says(simulate, name):
    host = simulate(name)

    found = host.call(functions)

    for entry, address in zip(host.layout.host["cards"], host.layout.cards, strict=True):
        assert found[address] == (entry["id"].upper(), entry["bound"])
        assert len(host.vfs(address)) == entry.get("vfs", 0)
        assert set(host.vfs(address)) <= found.keys()


@pytest.mark.parametrize("name", HOSTS)
def test_no_link_leads_nowhere(simulate, name):
    links = [path for path in (simulate(name).root / "sys").rglob("*") if path.is_symlink()]

    assert links
    assert [path for path in links if not path.exists()] == []


def test_the_large_host_has_512_functions_beside_its_ports(simulate):
    host = simulate("large")

    found = host.call(functions)

    assert len([driver for _, driver in found.values() if driver != "pcieport"]) == 512


def test_what_is_on_a_card_hangs_on_its_function(simulate):
    host = simulate("mixed")

    uplink, disk = host.card("uplink"), host.card("nvme-system")
    assert host.call(children, "net")["ens3f0"] == uplink
    assert host.call(children, "block")["nvme0n1p2"] == disk
    assert "dfl-port.0" in host.call(children, "platform")


def test_what_the_host_needs_for_itself_is_told_by_proc(simulate):
    host = simulate("mixed")

    assert "259:2 / / rw" in host.call(file, "/proc/self/mountinfo")
    assert "ens3f0\t00000000" in host.call(file, "/proc/net/route")
    assert host.call(file, "/proc/cpuinfo") == file("/proc/cpuinfo")


def test_a_driver_takes_what_it_showed_with_it(simulate):
    host = simulate({"cards": [{"card": "x710", "vfs": 2}]})
    card = host.card("x710")
    assert len(host.call(children, "net")) == 3

    host.detach(card)
    assert host.call(children, "net") == {}
    assert host.call(functions)[card] == ("8086:1572", None)

    host.attach(card, "vfio-pci")
    assert host.call(functions)[card] == ("8086:1572", "vfio-pci")
    assert host.call(children, "net") == {}


def test_a_card_comes_and_goes(simulate):
    host = simulate({"cards": ["t4"]})
    before = host.call(functions)

    card = host.add("a100", vfs=2)
    assert len(host.call(functions)) == len(before) + 4
    vf = host.vfs(card)[0]
    host.pull(vf)
    assert host.vfs(card) == [f"{card[:-1]}5"]
    host.pull(card)
    assert card not in host.call(functions)


def test_a_degraded_link_and_errors_are_shown(simulate):
    host = simulate({"cards": ["t4"]})
    card = host.card("t4")

    host.degrade(card, width=8)
    host.count_errors(card, "fatal", DLP=2, TLP=1)

    device = f"/sys/bus/pci/devices/{card}"
    assert host.call(file, f"{device}/current_link_width") == "8\n"
    assert "TOTAL_ERR_FATAL 3" in host.call(file, f"{device}/aer_dev_fatal")


def test_listeners_are_told(simulate, tmp_path):
    host = simulate({"cards": ["t4"]})
    card = host.card("t4")

    heard = host.submit(listen, str(tmp_path / "ready"), "remove")
    service.until((tmp_path / "ready").exists)
    host.pull(card)

    assert heard.result(180) == [("unbind", card), ("remove", card)]
