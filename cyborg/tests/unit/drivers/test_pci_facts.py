# SPDX-License-Identifier: Apache-2.0
"""The snapshot of a walk, what it reads later, and the names of products."""

from __future__ import annotations

import os

import pytest

from cyborg.drivers import pci
from cyborg.drivers.pci import facts, product_names
from cyborg.tests.contract import driver as contract
from cyborg.tests.pci_functions import function

CARD = function("0000:0c:00.0")
A = CARD.address


class Changing(contract.Files):
    """Says something else each time."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = 0

    def read(self, address: str, path: str) -> str:
        self.asked += 1
        return f"{self.asked}\n"

    def names(self, address: str, path: str) -> set[str]:
        self.asked += 1
        return {str(self.asked)}


def test_what_was_read_once_stays_the_same_for_every_driver():
    """Nothing is read before it is asked for."""
    files = Changing()
    walk = contract.snapshot([CARD], files)
    assert walk[A] == CARD
    assert list(walk.of_vendor("10de")) == [CARD]
    assert list(walk.of_vendor("8086")) == []
    assert files.asked == 0

    assert [walk.text(A, "x") for _ in range(3)] == ["1"] * 3
    assert [walk.names(A, "y") for _ in range(3)] == [("2",)] * 3
    assert files.asked == 2


def test_what_the_kernel_does_not_show_is_nothing():
    walk = contract.snapshot([CARD])

    assert walk.text(A, "absent") is None
    assert walk.number(A, "absent") is None
    assert walk.names(A, "absent") == ()
    with pytest.raises(OSError, match=f"absent of {A} cannot be read"):
        walk.required(A, "absent")


@pytest.mark.parametrize(("text", "number"), [("16", 16), ("0x10", 16), ("x", None), ("", None)])
def test_numbers(text, number):
    assert contract.snapshot([CARD], contract.Files({A: {"n": text}})).number(A, "n") == number


@pytest.mark.parametrize(
    ("text", "read"),
    [("S1\0\0\n", "S1"), ("\0", ""), ("A\0B", "AB"), ("a\udcffb", "a?b"), ("Ä", "Ä")],
)
def test_what_no_database_stores_is_left_out(text, read):
    files = contract.Files({A: {"serial": text}})

    assert contract.snapshot([CARD], files).text(A, "serial") == read


def test_a_function_that_is_gone_is_told_from_one_without_the_file():
    files = contract.Files({A: {"x": "1"}})
    walk = contract.snapshot([CARD], files)
    assert walk.text(A, "x") == "1"

    files.vanished = {A}

    with pytest.raises(pci.Vanished, match=A):
        walk.text(A, "y")
    # Not even what is there again: the pass would be half of one host and half of another.
    files.vanished = set()
    with pytest.raises(pci.Vanished):
        walk.names(A, "z")
    assert walk.text(A, "x") == "1"


def test_mediated_types():
    kind = "mdev_supported_types/nvidia-222"
    files = contract.Files(
        {
            A: {
                f"{kind}/name": "GRID T4-1B",
                f"{kind}/description": "framebuffer=1024M",
                f"{kind}/available_instances": "14",
                f"{kind}/devices/uuid-2": "",
                f"{kind}/devices/uuid-1": "",
            }
        }
    )

    (found,) = facts.mdev_types(CARD, contract.snapshot([CARD], files))

    assert (found.id, found.name, found.total) == ("nvidia-222", "GRID T4-1B", 16)
    assert found.created == ("uuid-1", "uuid-2")
    # One of which the number cannot be read is an error, not none.
    files = contract.Files({A: {f"{kind}/name": "GRID T4-1B"}})
    with pytest.raises(OSError, match="available_instances"):
        facts.mdev_types(CARD, contract.snapshot([CARD], files))


IDS = """\
# a comment
10dd  Another
\t20f1  Wrong
10de  NVIDIA Corporation
\t1eb8  TU104GL [Tesla T4]
# another
\t20f1  GA100 [A100 PCIe 40GB]
\t\t10de 145f  A100 PCIe 40GB of somebody
\t2335  GH100
8086  Intel Corporation
\t1572  Ethernet Controller X710 for 10GbE SFP+
"""


@pytest.fixture
def ids(tmp_path, monkeypatch):
    path = tmp_path / "pci.ids"
    path.write_text(IDS)
    monkeypatch.setattr(product_names, "PATHS", (tmp_path / "absent", path))
    return path


@pytest.mark.parametrize(
    ("vendor", "device", "name"),
    [
        ("10de", "1eb8", "Tesla T4"),
        ("10de", "20f1", "A100 PCIe 40GB"),
        ("10de", "2335", "GH100"),
        ("8086", "1572", "Ethernet Controller X710 for 10GbE SFP+"),
        ("8086", "1eb8", None),
        ("abcd", "1eb8", None),
    ],
)
def test_names_of_products(ids, vendor, device, name):
    assert product_names.find(vendor, device) == name


def test_a_new_edition_is_read_and_a_system_without_names_is_well(ids, monkeypatch):
    assert product_names.find("10de", "2901") is None
    ids.write_text(f"{IDS}10de  NVIDIA\n".replace("\t2335", "\t2901  GB100 [B200]\n\t2335"))
    os.utime(ids, ns=(1, 1))
    assert product_names.find("10de", "2901") == "B200"
    monkeypatch.setattr(product_names, "PATHS", ())
    assert product_names.find("10de", "1eb8") is None
