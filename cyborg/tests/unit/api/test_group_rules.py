# SPDX-License-Identifier: Apache-2.0
"""What a device profile may say, and which accelerator requests it yields."""

from __future__ import annotations

from typing import Any

import pytest

from cyborg import profiles
from cyborg.api import validation, versions
from cyborg.api.types import device_profiles as types
from cyborg.api.types.base import schema_of
from cyborg.common import errors


def check_profile(**changes: Any) -> None:
    """Hold a profile with those ``changes`` against its schema."""
    schema = schema_of(types.DeviceProfileReplacement, versions.MAX, sent=True)
    validation.check(schema, {"name": "n", "groups": [{}], **changes})


def check_groups(groups: Any) -> list[dict[str, str]]:
    """What the API does with groups: their schema goes before what the schema cannot say."""
    check_profile(groups=groups)
    return profiles.read_groups(groups)


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ({"resources:FPGA": "1"}, {"resources:FPGA": "1"}),
        ({"resources:FPGA": 1}, {"resources:FPGA": "1"}),
        ({"resources:FPGA": " 07 "}, {"resources:FPGA": "7"}),
        ({"resources: GPU ": "1"}, {"resources:GPU": "1"}),
        ({"resources:CUSTOM_QAT": "1"}, {"resources:CUSTOM_QAT": "1"}),
        ({"trait:CUSTOM_A": " forbidden "}, {"trait:CUSTOM_A": "forbidden"}),
        ({"trait: HW_NIC_SRIOV ": "required"}, {"trait:HW_NIC_SRIOV": "required"}),
        ({"trait:OWNER_CYBORG": "required"}, {"trait:OWNER_CYBORG": "required"}),
        ({"accel: function_id ": "5"}, {"accel:function_id": "5"}),
        ({"accel:function_name": ""}, {"accel:function_name": ""}),
        ({}, {}),
    ],
)
def test_groups_are_stored_trimmed_and_as_texts(written, stored) -> None:
    assert check_groups([written]) == [stored]


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ({"resources:FPGA": "-1"}, "Resources number -1 is invalid"),
        ({"resources:FPGA": "0"}, "Resources number 0 is invalid"),
        ({"resources:FPGA": "1.5"}, "Resources number 1.5 is invalid"),
        ({"resources:FPGA": "1001"}, "from 1 to 1000"),
        ({"resources:FPGA": "9" * 30}, "is invalid"),
        ({"resources:FPGA": "１"}, "is invalid"),  # a digit, but of another script
        ({"resources:FPGA": ""}, "Resources number  is invalid"),
        ({"resources:FPGA": True}, "is invalid"),
        ({"resources:FPGA": 1.5}, "is invalid"),
        ({"resources:FPGA": None}, "is invalid"),
        ({"resources:FPGA": [1]}, "is invalid"),
        ({"resources:fpga": "1"}, "class fpga: use FPGA, GPU, VGPU, PGPU, or a name that begins"),
        ({"resources:": "1"}, "Unsupported resource class"),
        ({"resources:FPGA": "1", "resources: FPGA": "1"}, "more than once"),
        ({"trait:HW_X": "required"}, "there is no standard trait HW_X"),
        ({"trait:COMPUTE_NODE": "required"}, "Unsupported trait COMPUTE_NODE: it must begin with"),
        ({"trait:OWNER_NOVA": "required"}, "Unsupported trait OWNER_NOVA"),
        ({"trait:CUSTOM_X": "Required"}, "Unsupported trait value Required"),
        ({"accel:function_id": None}, "must be a text"),
        ({"accel:function_id": 5}, "must be a text"),
        ({"accel:function_id": {"a": 1}}, "must be a text"),
        ({"accel:function_id": "v" * 256}, "accel:function_id must have 0 to 255 characters"),
        (
            {"accel:funtion_id": "x"},
            "Unknown group key 'accel:funtion_id': the known ones are accel:bitstream_id, accel:f",
        ),
        ({"accel:function_ids": "x"}, "Unknown group key 'accel:function_ids'"),
        ({"accel:": "x"}, "Unknown group key 'accel:'"),
        ({"accel:" + "k" * 256: "v"}, "at most 255 characters"),
        ({"foo": "bar"}, "Group key 'foo' must begin with resources:, trait: or accel:"),
        ({" resources:FPGA": "1"}, "must begin with resources:"),
        ("x", "must be an object"),
        (None, "must be an object"),
        ([], "must be an object"),
    ],
)
def test_a_group_that_breaks_a_rule_is_refused(group: Any, sentence: str) -> None:
    with pytest.raises(errors.Invalid, match=sentence):
        check_groups([{"resources:GPU": "1"}, group])


def test_up_to_23_traits_are_custom_ones_and_a_key_that_means_nothing_is_kept() -> None:
    group = {"resources:FPGA": "1", "trait:HW_NIC_SRIOV": "required"}
    groups: list[dict[str, str | float]] = [{"resources:FPGA": "1", "accel:n": 5}]
    for version in (versions.MIN, versions.DEVICE_STATUS):
        schema = schema_of(types.DeviceProfile, version, sent=True)
        with pytest.raises(errors.Invalid, match="should start with CUSTOM_"):
            validation.check(schema, {"name": "n", "groups": [group]})
        validation.check(schema, {"name": "n", "groups": groups})
    assert profiles.read_groups(groups) == [{"resources:FPGA": "1", "accel:n": "5"}]


def test_a_profile_has_a_bound_in_all() -> None:
    assert check_groups([{"resources:FPGA": "500"}] * 2)
    with pytest.raises(errors.Invalid, match="1500 accelerators in all"):
        check_groups([{"resources:FPGA": "500"}] * 3)


@pytest.mark.parametrize(
    ("field", "values"),
    [("name", ["a", "A_b-9", "x" * 255]), ("description", [None, "", "5", "d" * 65535])],
)
def test_what_a_field_may_be(field, values) -> None:
    for value in values:
        check_profile(**{field: value})


@pytest.mark.parametrize(
    ("field", "values", "sentence"),
    [
        ("name", ["", "a b", "a.b", "é", "abc\n", "x" * 256, 5, True, ["x"], None],
         "Device profile name must"),
        ("description", [["a"], True, 1.5, "d" * 65536], "description must"),
        ("groups", [[], None, "x", {"resources:FPGA": "1"}, [{}] * 1001], "groups must be a list"),
    ],
)
def test_what_a_field_may_not_be(field, values, sentence) -> None:
    for value in values:
        with pytest.raises(errors.Invalid, match=sentence):
            check_profile(**{field: value})


def test_each_unit_of_each_class_is_a_request_in_the_order_of_the_groups() -> None:
    groups = [
        {"resources:FPGA": "2", "resources:GPU": "1"},
        {"trait:CUSTOM_A": "required"},
        {"resources:CUSTOM_NIC": "1"},
    ]
    fpga, gpu, nic = (0, groups[0], "FPGA"), (0, groups[0], "GPU"), (2, groups[2], "CUSTOM_NIC")
    expected = [fpga, fpga, gpu, nic]
    assert profiles.count_requests(groups) == expected


def test_a_xilinx_card_is_two_requests() -> None:
    group = {"resources:FPGA": "2", "resources:GPU": "1"}
    for value, count in (("required", 5), ("forbidden", 3)):
        assert len(profiles.count_requests([{**group, "trait:CUSTOM_FPGA_XILINX": value}])) == count
