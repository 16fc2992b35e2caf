# SPDX-License-Identifier: Apache-2.0
"""The manifests for Kubernetes, and what cyborg-kube says to it, by the types of its client."""

from __future__ import annotations

import pathlib
import re
import uuid
from typing import Any

import pytest
import yaml
from google.protobuf import descriptor_pb2

from cyborg.conf import kube
from cyborg.kube import endpoints, inventory, messages, slices
from cyborg.kube.inventory import OfferedPart
from cyborg.policy import rules
from cyborg.policy.rules import allocation, base
from cyborg.tests import kube_server, kubelet
from cyborg.tests.kube_types import as_read

HOW = "run protoc --descriptor_set_out=set.binpb on the files of cyborg/kube/protos"
FOLDER = pathlib.Path(__file__).parents[4] / "etc" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
POLICY = FOLDER / "policy.yaml"
DRIVER = "cyborg.openstack.org"


def documents(path: pathlib.Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


ALL = [each for path in MANIFESTS if path != POLICY for each in documents(path)]


@pytest.mark.parametrize("document", ALL, ids=lambda each: each["metadata"]["name"])
def test_manifests_are_of_the_published_types(document: dict[str, Any]) -> None:
    assert as_read(document) == document
    assert as_read({**document, "nonesuch": 1}) == document


def test_there_is_all_that_is_promised() -> None:
    assert {each["kind"] for each in ALL} >= {
        "ClusterRole",
        "DaemonSet",
        "DeviceClass",
        "ResourceClaim",
        "ResourceClaimTemplate",
        "ValidatingAdmissionPolicy",
    }
    assert (FOLDER / "Containerfile").exists()


def test_the_probe_looks_at_the_file_that_passes_touch() -> None:
    (found,) = (each for each in ALL if each["kind"] == "DaemonSet")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    defaults = {each.name: each.default for each in kube.OPTS}
    path = pathlib.Path(defaults["plugins_dir"], defaults["driver_name"], endpoints.ALIVE)
    assert f"find {path} " in container["livenessProbe"]["exec"]["command"][-1]


def test_claims_name_device_classes_that_there_are() -> None:
    classes = {each["metadata"]["name"] for each in documents(FOLDER / "device-classes.yaml")}
    named = set(re.findall(r"deviceClassName: (\S+)", (FOLDER / "example-claims.yaml").read_text()))
    assert named
    assert named <= classes


def test_the_policy_file_has_rules_of_the_api() -> None:
    known = {rule.name: rule.check_str for rule in rules.list_rules()}
    written = yaml.safe_load(POLICY.read_text())
    for name, check in written.items():
        # Who may do it without the file may do it with it.
        assert check == f"{known[name]} or role:cyborg_kube"
    rest = (allocation.CREATE, allocation.RENEW, allocation.DELETE)
    assert {known[name] for name in rest} == {base.PROJECT_MEMBER_OR_SERVICE}


@pytest.mark.parametrize("file", ["dra", "health", "registration"])
def test_messages_are_those_of_the_published_files(file: str) -> None:
    own = {"dra": messages.DRA, "health": messages.HEALTH, "registration": messages.REGISTRATION}
    described = kubelet.pool().FindFileByName(f"{file}.proto")
    assert set(described.message_types_by_name) == set(own[file])
    for name, expected in described.message_types_by_name.items():
        assert shape(own[file][name].DESCRIPTOR) == shape(expected), f"{name}: {HOW}"
    known = {messages.DRA_SERVICE, messages.REGISTRATION_SERVICE, *messages.HEALTH_SERVICES}
    for each in described.services_by_name.values():
        assert each.full_name in known


def shape(message: Any) -> Any:
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    for each in proto.field:
        each.ClearField("json_name")
    for nested in proto.nested_type:
        for each in nested.field:
            each.ClearField("json_name")
    return proto


def part(**changes: Any) -> OfferedPart:
    fields: dict[str, Any] = {
        "provider": str(uuid.uuid4()),
        "device_type": "GPU",
        "resource_class": "VGPU",
        "total": 1,
        "left": 1,
    }
    return OfferedPart(**(fields | changes))


def wanted(*parts: OfferedPart) -> dict[str, slices.Spec]:
    return slices.specs(parts, DRIVER, "n", evict_unhealthy=False)


def test_many_devices_fill_many_slices() -> None:
    counted = [part(total=16, left=number) for number in range(10)]
    single = [part() for _ in range(5)]
    found = wanted(*counted, *single)
    for spec in found.values():
        kube_server.check(spec)
        assert spec["pool"]["resourceSliceCount"] == len(found) == 5
    devices = [each for spec in found.values() for each in spec.get("devices", ())]
    assert len({each["name"] for each in devices}) == len(devices) == 165
    named = {slices.provider_of(each["name"]) for each in devices}
    assert named == {each.provider for each in [*counted, *single]}
    sets = {
        each["name"]: each["counters"]["accelerators"]["value"]
        for spec in found.values()
        for each in spec.get("sharedCounters", ())
    }
    assert sorted(sets.values(), key=int) == [str(number) for number in range(10)]
    consumed = [use["counterSet"] for each in devices for use in each.get("consumesCounters", ())]
    assert len(consumed) == 160
    assert set(consumed) == set(sets)


def test_facts_have_types() -> None:
    traits = frozenset({f"CUSTOM_{number}" for number in range(40)} | {"CUSTOM_" + "X" * 40})
    facts: dict[str, str | int] = {
        "type": "GPU",
        "memory_mib": 81920,
        "numa_node": 1,
        "driver_version": "550.54.15",
        "firmware": "550.054.15",
        "product": "P" * 100,
        "model": "x" + "é" * 60,
        "build": "1.2." + "3" * 70,
        "no identifier": "x",
    }
    (spec,) = wanted(part(facts=facts, traits=traits)).values()
    kube_server.check(spec)
    (device,) = spec["devices"]
    assert device["capacity"] == {
        "accelerators": {"value": "1"},
        "memory": {"value": "80Gi"},
    }
    attributes = device["attributes"]
    assert len(attributes) == 30
    assert attributes["numa_node"] == {"int": 1}
    assert attributes["driver_version"] == {"version": "550.54.15"}
    assert attributes["firmware"] == {"string": "550.054.15"}
    assert attributes["product"] == {"string": "P" * 64}
    # The limit is of bytes, and what is cut is still text.
    assert attributes["model"] == {"string": "x" + "é" * 31}
    assert attributes["build"] == {"string": "1.2." + "3" * 60}
    assert attributes["CUSTOM_0"] == {"bool": True}
    assert "no identifier" not in attributes
    assert "consumesCounters" not in device


@pytest.mark.parametrize(
    ("mib", "expected"),
    [(0, "0"), (3, "3Mi"), (1024, "1Gi"), (1024**3, "1Pi"), (5 * 1024**5, "5120Ei")],
)
def test_amounts_are_written_as_the_server_keeps_them(mib: int, expected: str) -> None:
    (spec,) = wanted(part(facts={"memory_mib": mib})).values()
    assert spec["devices"][0]["capacity"]["memory"] == {"value": expected}


def test_the_gravest_taints_are_kept() -> None:
    reasons = (
        inventory.IN_USE,
        inventory.BLANK,
        inventory.DISABLED,
        inventory.HOST_DOWN,
        inventory.DRAINED,
        inventory.MISSING,
        inventory.UNHEALTHY,
    )
    (spec,) = wanted(part(closed=dict.fromkeys(reasons, ""))).values()
    kube_server.check(spec)
    keys = {each["key"].partition("/")[2] for each in spec["devices"][0]["taints"]}
    assert keys == set(reasons[3:])


def test_accelerators_that_go_together_are_one_device() -> None:
    board = part(total=8, left=8, unit=8, resource_class="CUSTOM_BOARD")
    found = wanted(board)
    (spec,) = found.values()
    (device,) = spec["devices"]
    assert device["capacity"] == {"accelerators": {"value": "8"}}
    assert board.group() == {"resources:CUSTOM_BOARD": "8", "accel:tolerate_taint": "true"}


def test_no_devices_are_no_slices() -> None:
    assert wanted() == {}
