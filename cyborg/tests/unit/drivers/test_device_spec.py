# SPDX-License-Identifier: Apache-2.0
"""Nova's device_spec grammar."""

from __future__ import annotations

import json

import pytest

from cyborg.drivers import pci
from cyborg.drivers.pci import device_spec, kinds
from cyborg.tests.pci_functions import PF, VFS, function

FUNCTIONS = pci.Snapshot(
    [
        PF,
        *VFS,
        function("0000:81:1f.7", vendor="8086", device="0b30", netdevs=("ens2",)),
        function("0001:0a:00.0", vendor="1bd4", device="0911"),
    ]
)
ALL = sorted(FUNCTIONS)
CARD = ["0000:09:00.0", "0000:09:00.4", "0000:09:00.5"]


def matched(*values: object) -> list[str]:
    specs = device_spec.parse([json.dumps(value) for value in values])
    return [
        each.address
        for each in FUNCTIONS.values()
        if device_spec.first_match(specs, each, FUNCTIONS)
    ]


@pytest.mark.parametrize(
    ("spec", "addresses"),
    [
        ({}, ALL),
        ({"vendor_id": "10de"}, CARD),
        ({"vendor_id": "10DE"}, CARD),
        ({"vendor_id": "0x10de"}, CARD),
        ({"vendor_id": "*"}, ALL),
        ({"vendor_id": "*", "product_id": "b30"}, ["0000:81:1f.7"]),
        ({"product_id": "20f1"}, ["0000:09:00.0"]),
        ({"product_id": "20f2"}, ["0000:09:00.4", "0000:09:00.5"]),
        ({"vendor_id": "10de", "product_id": "0b30"}, []),
        ({"address": "*"}, ALL),
        ({"address": "*:*:*.*"}, ALL),
        ({"address": "0000:81:1f.7"}, ["0000:81:1f.7"]),
        ({"address": "81:1f.7"}, ["0000:81:1f.7"]),
        ({"address": "0:81:1F.7"}, ["0000:81:1f.7"]),
        ({"address": "1:*:*.*"}, ["0001:0a:00.0"]),
        ({"address": "*:0a:00.*"}, ["0001:0a:00.0"]),
        ({"address": ":9:00."}, CARD),
        ({"address": "0000:8?:*.*"}, ["0000:81:1f.7"]),
        ({"address": "*:09:*.[45]"}, ["0000:09:00.4", "0000:09:00.5"]),
        # The whole address of a physical function means its virtual functions too.
        ({"address": "0000:09:00.0"}, CARD),
        ({"address": "0000:09:00.0", "product_id": "20f2"}, ["0000:09:00.4", "0000:09:00.5"]),
        ({"address": "0000:09:00.*"}, CARD),
        ({"address": {"bus": "09", "function": "[4-7]"}}, ["0000:09:00.4", "0000:09:00.5"]),
        ({"address": {"domain": ".*", "bus": "8", "slot": "1f"}}, ["0000:81:1f.7"]),
        ({"address": {}}, ALL),
        ({"devname": "ens2"}, ["0000:81:1f.7"]),
        ({"devname": "ens1f0"}, CARD),
        ({"devname": "ens"}, []),
        ([{"vendor_id": "1bd4"}, {"vendor_id": "8086"}], ["0000:81:1f.7", "0001:0a:00.0"]),
        ([], []),
    ],
)
def test_what_a_spec_matches(spec, addresses):
    assert matched(spec) == addresses


def test_the_first_that_matches_counts():
    assert matched({"vendor_id": "1bd4"}, {"vendor_id": "8086"}) == ["0000:81:1f.7", "0001:0a:00.0"]
    specs = device_spec.parse(
        ['{"product_id": "20f2", "traits": "first"}', '{"vendor_id": "10de", "traits": "second"}']
    )

    counting = [device_spec.first_match(specs, each, FUNCTIONS) for each in (PF, *VFS)]

    first, second = ("CUSTOM_FIRST",), ("CUSTOM_SECOND",)
    assert [spec and spec.traits for spec in counting] == [second, first, first]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CUSTOM_GOLD", "CUSTOM_GOLD"),
        ("custom_gold", "CUSTOM_GOLD"),
        ("gold-v2", "CUSTOM_GOLD_V2"),
        ("PGPU", "PGPU"),
        ("fpga", "FPGA"),
        ("GPU", "CUSTOM_GPU"),
    ],
)
def test_a_resource_class_is_made_legal(text, name):
    (spec,) = device_spec.parse([json.dumps({"resource_class": text})])

    assert spec.resource_class == name


def test_traits_are_made_legal_and_listed_once(caplog):
    """Tags that mean nothing here are named in the log."""
    traits = '"traits": "gold, CUSTOM_GOLD,HW_NIC_SRIOV,, big-one "'
    (spec,) = device_spec.parse([f'{{{traits}, "physical_network": "p", "managed": "no"}}'])

    assert spec.traits == ("CUSTOM_GOLD", "HW_NIC_SRIOV", "CUSTOM_BIG_ONE")
    assert "managed, physical_network" in caplog.text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "not JSON"),
        ("5", "must be a JSON object"),
        ('["10de"]', "must be a JSON object"),
        ('{"vendor_id": "10dex"}', "vendor_id must be"),
        ('{"vendor_id": 4318}', "vendor_id must be a text"),
        ('{"product_id": "123456"}', "product_id must be"),
        ('{"product_id": ""}', "product_id must be"),
        ('{"address": "1:2:3:4.5"}', "too many colons"),
        ('{"address": "0000:09:20.0"}', "wrong slot: '20'"),
        ('{"address": "0000:09:00.8"}', "wrong function: '8'"),
        ('{"address": "0000:xx:00.0"}', "wrong bus: 'xx'"),
        ('{"address": "100000000:09:00.0"}', "wrong domain: '100000000'"),
        ('{"address": 9}', "address must be a text or an object"),
        ('{"address": {"device": "1"}}', "it may have"),
        ('{"address": {"bus": "["}}', "wrong regular expression"),
        ('{"address": {"bus": 9}}', "wrong regular expression"),
        ('{"address": "*", "devname": "ens2"}', "cannot be given together"),
        ('{"resource_class": " "}', "resource_class must not be empty"),
        ('{"traits": ["a"]}', "traits must be a text"),
    ],
)
def test_what_is_wrong_is_said_with_the_place(text, fault):
    with pytest.raises(ValueError, match=r"^\[pci\] device_spec ") as caught:
        device_spec.parse([text])

    assert fault in str(caught.value)


def test_an_exclusion_behind_a_wider_object_is_told():
    wide, narrow = {"address": "0000:25:00.0"}, {"address": "0000:25:00.0", "exclude": "true"}
    functions = pci.Snapshot([function("0000:25:00.0")])
    for order, said in (([wide, narrow], "an object before it matches, too"), ([narrow], "")):
        specs = device_spec.parse([json.dumps(each) for each in order])
        found = device_spec.unused(specs, set(map(id, specs[:-1])), functions, "x", "unfit")
        assert said in " ".join(found)
        assert bool(found) == bool(said)
    # So is an address that no function has.
    assert device_spec.absent(["0000:25:00.0", "0000:26:00.0"], functions, "x") == [
        "0000:26:00.0 of x is no PCI function of this host"
    ]


def test_the_sound_of_a_graphics_card_is_no_accelerator():
    for class_code, is_one in (("030000", True), ("040300", False)):
        card = function("0000:25:00.0", vendor="1ed5", device="0222", class_code=class_code)
        assert kinds.is_accelerator(card) == is_one
