# SPDX-License-Identifier: Apache-2.0
"""The simulated hosts themselves: unmodified pyudev finds what the YAML files say.

What a kernel does on a write is tested with the code that writes: ``agent/test_privileged``.
"""

from __future__ import annotations

import pytest
import pyudev

from cyborg.tests import service
from cyborg.tests.simulated import cards
from cyborg.tests.simulated.listed import functions, listen

pytestmark = pytest.mark.slow

HOSTS = sorted(path.stem for path in (cards.DATA / "hosts").glob("*.yaml"))


def children(subsystem: str) -> dict[str, str | None]:
    """The devices of a class, each with the function that it is on."""
    found = {}
    for device in pyudev.Context().list_devices(subsystem=subsystem):
        parent = device.find_parent("pci")
        found[device.sys_name] = parent.sys_name if parent else None
    return found


@pytest.mark.parametrize("name", HOSTS)
def test_pyudev_finds_every_function_as_the_file_says(simulate, name):
    host = simulate(name)

    found = host.call(functions)

    for entry, address in zip(host.layout.host["cards"], host.layout.cards, strict=True):
        assert found[address] == (entry["id"].upper(), entry["bound"])
        assert len(host.vfs(address)) == entry.get("vfs", 0)
        assert set(host.vfs(address)) <= found.keys()
    links = [path for path in (host.root / "sys").rglob("*") if path.is_symlink()]
    assert links
    assert [path for path in links if not path.exists()] == []


def test_what_is_on_a_card_hangs_on_its_function_and_goes_with_its_driver(simulate):
    host = simulate({"cards": ["nvme-system", "x710"]})
    uplink, disk = host.card("x710"), host.card("nvme-system")

    assert host.call(children, "block")["nvme0n1p2"] == disk
    assert host.call(children, "net")["ens2f0"] == uplink
    host.detach(uplink)
    assert "ens2f0" not in host.call(children, "net")


def test_listeners_are_told(simulate, tmp_path):
    host = simulate({"cards": ["t4"]})
    card = host.card("t4")

    heard = host.submit(listen, str(tmp_path / "ready"), "remove")
    service.until((tmp_path / "ready").exists)
    host.pull(card)

    assert heard.result(180) == [("unbind", card), ("remove", card)]


def test_on_a_live_host_events_come_in_the_kernels_order_and_to_nobody_else(
    simulate_live, tmp_path
):
    host, other = (simulate_live({"cards": [card]}) for card in ("e810", "t4"))
    pf, pulled = host.device(host.card("e810")), other.card("t4")
    first, second = f"{pf.name[:-4]}01.0", f"{pf.name[:-4]}01.1"
    heard = host.submit(listen, str(tmp_path / "ready"), "remove")
    heard_elsewhere = other.submit(listen, str(tmp_path / "too"), "remove")
    service.until(lambda: (tmp_path / "ready").exists() and (tmp_path / "too").exists())

    for count in ("2", "0"):
        (pf / "sriov_numvfs").write_text(count)
    other.change("pull", pulled)

    assert heard.result(180) == [
        *((action, first) for action in ("add", "change", "bind")),
        *((action, second) for action in ("add", "change", "bind")),
        ("change", pf.name),
        ("unbind", second),
        ("remove", second),
    ]
    assert heard_elsewhere.result(180) == [("unbind", pulled), ("remove", pulled)]
    # Root may not write what the kernel keeps to itself.
    with pytest.raises(PermissionError):
        (pf / "vendor").write_text("0x10de")


def test_virtual_gpus_bar_each_other_as_on_their_cards(simulate_live):
    names = ["a100", "a100-mig"]
    host = simulate_live({"cards": [{"card": name, "vfs": 3} for name in names]})
    uuids = [f"11111111-2222-3333-4444-55555555555{number}" for number in range(2)]
    for name, uuid, made in zip(names, uuids, ("nvidia-468", "nvidia-477"), strict=True):
        function = host.device(host.card(name)) / "virtfn0/mdev_supported_types"
        (function / made / "create").write_text(uuid)

    def left(name: str, kind: str) -> list[str]:
        kinds = [f"virtfn{number}/mdev_supported_types/{kind}" for number in range(3)]
        card = host.device(host.card(name))
        return [(card / each / "available_instances").read_text().strip() for each in kinds]

    # A function holds one device, and another type fits beside it only on a card in slices.
    assert left("a100", "nvidia-468") == ["0", "1", "1"]
    assert left("a100", "nvidia-474") == ["0", "0", "0"]
    assert left("a100-mig", "nvidia-475") == ["0", "1", "1"]
