# SPDX-License-Identifier: Apache-2.0
"""What the host itself uses is found, through whatever was built of it."""

from __future__ import annotations

import fcntl
import pathlib
import socket
import struct

import pytest

from cyborg.drivers import pci
from cyborg.drivers.pci import host_use


def used() -> dict[str, str]:
    return dict(host_use.read().used)


def virtual_functions_by_card() -> dict[str, str | None]:
    return {address: function.pf for address, function in pci.scan().items()}


DISK, NIC = {"cards": ["nvme-system"]}, {"cards": ["x710"]}
#: A volume on the disk, and a bridge with the card's network interface.
VOLUME, BRIDGE = {"volumes": {"dm-0": ["nvme0n1p2"]}}, {"bridges": {"br0": ["ens1f0"]}}
HOSTS = [
    ({**DISK, "mounts": {"/": "nvme0n1p2"}}, "the host uses it for /"),
    ({**DISK, "swaps": ["nvme0n1p1"]}, "the host uses it for swap"),
    ({**DISK, **VOLUME, "mounts": {"/srv": "dm-0"}}, "the host uses it for /srv"),
    ({**NIC, "default_route": "ens1f0"}, "the host's network interface ens1f0 is on it"),
    ({**NIC, **BRIDGE}, "its network interface ens1f0 is a port of the host's"),
    ({**NIC, **BRIDGE, "default_route": "br0"}, "the host's network interface br0 is on it"),
]
IDS = ["mounted", "swap", "volume", "route", "port", "bridge with a route"]


SPARE = ["nvme-pm1733", "connectx6"]
FOLDERS = ("class/net", "class/block", "dev/block")
#: In the place of a link: a file.
FILE = "a file"


def answers(question: str = "use") -> dict[str, str]:
    """What is said of each function that disks or networks of the host may be on."""
    functions = pci.scan()
    found = {}
    for each in filter(pci.can_carry, functions.values()):
        try:
            use = getattr(functions, question)(each)
            found[each.address] = "free" if use is None else "used"
        except OSError:
            found[each.address] = "in doubt"
    return found


def answers_with_broken_links(root: str) -> list[tuple[str, dict[str, str]]]:
    """Each way in which a link is broken: where it leads, with the answers meanwhile."""
    said = []
    places = [pathlib.Path(root, "sys", folder) for folder in FOLDERS]
    for link in sorted(link for place in places if place.is_dir() for link in place.iterdir()):
        target, where = link.readlink(), str(link.resolve())
        for instead in (None, "nowhere", link.name, FILE):
            link.unlink(missing_ok=True)
            if instead == FILE:
                link.touch()
            elif instead is not None:
                link.symlink_to(instead)
            said.append((where, answers()))
        link.unlink()
        link.symlink_to(target)
    return said


@pytest.mark.parametrize(("host", "reason"), HOSTS, ids=IDS)
def test_the_card_below_is_used_and_no_broken_link_frees_it(simulate, host, reason):
    simulated = simulate({**host, "cards": [*host["cards"], *SPARE]})
    card = simulated.layout.cards[0]
    assert simulated.call(used) == {card: reason}
    sound = simulated.call(answers)

    said = simulated.call(answers_with_broken_links, str(simulated.root))

    assert sorted(sound.values()) == ["free", "free", "used"]
    # Two links at least, each broken in four ways.
    assert len(said) >= 8
    for where, found in said:
        assert found[card] != "free", where
        # What is a card's own says nothing of others.
        if card in where:
            assert found == sound, where


@pytest.mark.parametrize("folder", ["class/net", "class/block"])
def test_without_the_lists_nothing_is_free(simulate, folder):
    simulated = simulate({"cards": SPARE})
    place = simulated.files.path(folder)
    place.rename(place.with_suffix(".aside"))
    place.symlink_to("nowhere")

    found = simulated.call(answers, "volume" if folder == "class/block" else "use")

    # A disk's controller has no networks.
    assert found.pop(simulated.card("connectx6")) == "in doubt"
    assert set(found.values()) == {"free" if folder == "class/net" else "in doubt"}


def test_a_mount_may_have_any_name(simulate):
    """The kernel writes blanks, tabs and line feeds of names otherwise, and nothing else."""
    paths = [f"/media/my{mark}disk" for mark in "\r\x0b\x1e\x85\u2028\u3000"]
    mounts = {path: f"nvme{number}n1p2" for number, path in enumerate(paths)}
    simulated = simulate({"cards": [{"card": "nvme-system", "count": 6}], "mounts": mounts})

    assert simulated.call(used) == {
        simulated.card("nvme-system", number): f"the host uses it for {path}"
        for number, path in enumerate(paths)
    }


def kept(address: str) -> str | None:
    functions = pci.scan()
    return pci.reason_to_keep(functions[address], functions)


@pytest.mark.parametrize(
    ("class_code", "below"),
    [
        ("010400", "pci10000:00/10000:00:02.0/10000:01:00.0/nvme/nvme9/nvme9n1"),
        ("0c0330", "usb1/1-2/1-2:1.0/host6/target6:0:0/6:0:0:0/block/nvme9n1"),
        ("0c0400", "host7/rport-7:0-0/target7:0:0/7:0:0:0/block/nvme9n1"),
        ("080501", "mmc_host/mmc0/mmc0:0001/block/nvme9n1"),
    ],
    ids=["a bus of its own", "USB", "Fibre Channel", "SD card"],
)
def test_a_controller_keeps_the_disk_far_below_it(simulate, class_code, below):
    """Intel's VMD has its disks on a bus of its own, and other controllers have disks too."""
    card = {"card": "nvme-pm1733", "class": class_code, "driver": None, "sriov": None}
    simulated = simulate({"cards": [card], "swaps": ["nvme9n1"]})
    address = simulated.card("nvme-pm1733")
    uevent = "MAJOR=259\nMINOR=99\nDEVNAME=nvme9n1\nDEVTYPE=disk"
    simulated.files.device(f"{simulated.path(address)}/{below}", "block", uevent, {"dev": "259:99"})

    assert simulated.call(kept, address) == "the host uses it for swap"


def address_without_a_route(name: str, label: str) -> None:
    """Give the only interface of a network namespace, which is not up, this name and an address."""
    down, rename, assign = 0x8914, 0x8923, 0x8916  # SIOCSIFFLAGS, SIOCSIFNAME, SIOCSIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, down, struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(asked, rename, struct.pack("16s16s8x", b"lo", name.encode()))
        place = struct.pack("H2x4s8x", socket.AF_INET, socket.inet_aton("192.0.2.7"))
        fcntl.ioctl(asked, assign, struct.pack("16s16s8x", label.encode(), place))


@pytest.mark.parametrize("label", ["ens1f0", "ens1f0:7"])
def test_a_network_card_with_an_address_is_used_though_there_is_no_route(simulate_live, label):
    host = simulate_live({"cards": ["x710", {"card": "x710", "name": "free"}]})
    assert host.call(used) == {}

    host.call(address_without_a_route, "ens1f0", label)

    assert host.call(used) == {
        host.card("x710"): "the host's network interface ens1f0 is on it"
    }


@pytest.mark.parametrize("upper", ["ens1f0.100", "macvtap0"])
def test_a_network_card_that_only_guests_have_an_address_behind_is_used(simulate, upper):
    """A VLAN of it is a port of a bridge, or a guest has a macvtap on it."""
    simulated = simulate({"cards": ["x710"]})
    card = simulated.card("x710")
    links = {
        f"{simulated.path(card)}/net/ens1f0/upper_{upper}": f"devices/virtual/net/{upper}",
        f"devices/virtual/net/{upper}/lower_ens1f0": f"{simulated.path(card)}/net/ens1f0",
        f"devices/virtual/net/{upper}/master": "devices/virtual/net/br100",
        f"class/net/{upper}": f"devices/virtual/net/{upper}",
    }
    for path, target in links.items():
        simulated.files.link(path, target)

    assert simulated.call(used) == {
        card: f"its network interface ens1f0 is below {upper} of the host's"
    }


def test_every_device_of_a_btrfs_is_used(simulate):
    """The table of mounts tells but one of them, if any."""
    simulated = simulate({"cards": [{"card": "nvme-system", "count": 2}], "mounts": {}})
    fsid = "fe23eb30-2f3d-4d2f-9a4e-4b3d1e3b0a77"
    for name in ("nvme0n1p2", "nvme1n1p2"):
        simulated.files.link(f"fs/btrfs/{fsid}/devices/{name}", f"class/block/{name}")

    assert simulated.call(used) == {
        simulated.card("nvme-system", number): f"the host uses it for btrfs {fsid}"
        for number in range(2)
    }


def test_a_virtual_function_without_its_link_is_none_the_less_one(simulate):
    """As the kernel shows it for a moment while it makes them."""
    simulated = simulate({"cards": [{"card": "a100", "vfs": 2}, "t4"]})
    card = simulated.card("a100")
    vfs = simulated.vfs(card)
    simulated.files.unlink(f"{simulated.path(vfs[1])}/physfn")

    found = simulated.call(virtual_functions_by_card)

    assert {address for address, pf in found.items() if pf == card} == set(vfs)
    assert found[simulated.card("t4")] is None


@pytest.mark.parametrize(("addressed", "refused"), [([], False), (["lo"], True)])
def test_a_host_has_no_routes_before_an_interface_is_up(
    tmp_path, monkeypatch, *, addressed, refused
):
    """By then the table has not even a heading; afterwards it has lost that."""
    routes = tmp_path / "route"
    routes.touch()
    monkeypatch.setattr(host_use, "_ROUTES", str(routes))
    monkeypatch.setattr(host_use, "_addressed", lambda: iter(addressed))

    doubt = host_use.read().network_doubt

    assert (doubt is not None and str(routes) in doubt) is refused
