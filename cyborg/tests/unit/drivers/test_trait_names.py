# SPDX-License-Identifier: Apache-2.0
"""Traits that follow from facts."""

from __future__ import annotations

import re

import hypothesis
import os_traits
import pytest
from hypothesis import strategies as st

from cyborg.drivers import trait_names
from cyborg.tests import hosts


@pytest.mark.parametrize(
    ("attributes", "traits"),
    [
        ({}, ()),
        ({"product": "A100 PCIe 40GB"}, ("CUSTOM_PRODUCT_A100_PCIE_40GB",)),
        ({"product": "[GA100] Graphics "}, ("CUSTOM_PRODUCT_GA100_GRAPHICS",)),
        ({"product": "加速器"}, ()),
        ({"firmware": "92.00.45.00.03"}, ("CUSTOM_FIRMWARE_92_00_45_00_03",)),
        ({"driver_version": "550.54.14"}, ("CUSTOM_DRIVER_VERSION_550_54_14",)),
        ({"numa_node": 0}, ("CUSTOM_NUMA_NODE_0",)),
        ({"memory_mib": 81920}, ("CUSTOM_MEMORY_GIB_80",)),
        ({"memory_mib": 81559}, ("CUSTOM_MEMORY_GIB_80",)),
        ({"memory_mib": 1023}, ("CUSTOM_MEMORY_MIB_1023",)),
        ({"memory_mib": 0}, ()),
        ({"capacity_mib": 3662109}, ("CUSTOM_CAPACITY_GIB_3576",)),
        ({"link": "16.0 GT/s x16", "pci_address": "0000:3b:00.0", "dev_type": "type-PF"}, ()),
        (
            {"product": "T4", "memory_mib": 15360, "numa_node": 1},
            ("CUSTOM_MEMORY_GIB_15", "CUSTOM_NUMA_NODE_1", "CUSTOM_PRODUCT_T4"),
        ),
    ],
)
def test_what_a_scheduler_can_use_is_a_trait(attributes, traits) -> None:
    assert trait_names.of_facts(attributes) == traits


@pytest.mark.parametrize(
    ("name", "trait"),
    [
        ("HW_NIC_SRIOV", "HW_NIC_SRIOV"),
        ("HW_NIC_TELEPATHY", "CUSTOM_HW_NIC_TELEPATHY"),
        ("CUSTOM_A__B_", "CUSTOM_A__B_"),
        ("CUSTOM_lower", "CUSTOM_LOWER"),
        ("physnet-1", "CUSTOM_PHYSNET_1"),
    ],
)
def test_a_name_is_its_own_trait_where_placement_takes_it(name: str, trait: str) -> None:
    assert trait_names.legal(name) == trait


def test_long_names_that_differ_at_their_ends_are_different_traits() -> None:
    one, other = trait_names.legal("x" * 300 + "1"), trait_names.legal("x" * 300 + "2")
    assert one != other
    assert len(one) == len(other) == 255


@pytest.mark.parametrize("name", ["", "-", "CUSTOM_", "加速器"])
def test_a_name_without_letters_of_traits_has_no_trait(name: str) -> None:
    with pytest.raises(ValueError, match="could be made"):
        trait_names.legal(name)


_WORDS = st.text(max_size=400)
_NUMBERS = st.integers(0, 2**31 - 1)


@hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("product", "firmware", "driver_version", "link", "other"), _WORDS),
            **dict.fromkeys(("memory_mib", "capacity_mib", "numa_node"), _NUMBERS),
        },
    )
)
def test_traits_are_legal_whatever_the_hardware_says(attributes: dict[str, str | int]) -> None:
    traits = trait_names.of_facts(attributes)
    legal = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
    assert all(legal.fullmatch(trait) or trait in os_traits.get_traits() for trait in traits)
    assert hosts.deployable("host-1_a", traits=traits).traits == traits
