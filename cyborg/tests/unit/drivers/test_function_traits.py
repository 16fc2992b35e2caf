# SPDX-License-Identifier: Apache-2.0
"""The traits that stand for functions."""

from __future__ import annotations

import os_traits
import pytest

from cyborg.programming import program


def test_a_trait_names_the_vendor_and_the_function() -> None:
    """Ids that differ have different traits."""
    assert program.function_trait("FAKE", "aes-128") == "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES128"
    assert program.function_trait("", "aes_128") == "CUSTOM_FPGA_FUNCTION_ID_AES_128"
    ids = ["aes_128", "aes.128", "aes.1.28", "aes.1_28", "aes_1.28", "aes_1_28"]
    traits = {program.function_trait("FAKE", each) for each in ids}
    assert len(traits) == len(ids)
    assert all(each.startswith(os_traits.CUSTOM_NAMESPACE) for each in traits)
    assert {len(each) - len(each.strip("_")) for each in traits} == {0}


@pytest.mark.parametrize("vendor", ["FAKE", "", "INTEL_1"])
@pytest.mark.parametrize("function", ["aes", "a.e-S", "a_es"])
def test_a_trait_is_known_as_that_of_its_function(vendor: str, function: str) -> None:
    trait = program.function_trait(vendor, function)
    assert program.is_function_trait(trait)
    assert program.may_be_trait_of(trait, function.upper())
    assert not program.may_be_trait_of(trait, "zip")
