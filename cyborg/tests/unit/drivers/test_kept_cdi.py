# SPDX-License-Identifier: Apache-2.0
"""Devices in files of the Container Device Interface that others keep are found and copied."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import jsonschema
import pytest
import yaml
from oslo_config import cfg

from cyborg.agent import cdi_files
from cyborg.drivers import base, kept_cdi
from cyborg.tests import cdi_schema

KIND, ARQ = "nvidia.com/gpu", "11111111-2222-3333-4444-555555555555"
HARDWARE = re.compile(r"/dev/(nvidia\d+|dri/.+)")
HOOK = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["a", "b"]}
MOUNT = {"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1", "options": ["ro"]}
#: NVIDIA's tool gives it to all containers.
DAEMON = {"hostPath": "/tmp/nvidia-mps", "containerPath": "/tmp/nvidia-mps", "options": ["rbind"]}


@pytest.fixture
def folders(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> list[pathlib.Path]:
    conf.set_override("state_path", str(tmp_path / "state"))
    found = [tmp_path / "etc", tmp_path / "run"]
    for each in found:
        each.mkdir()
    conf.set_override("cdi_spec_dirs", list(map(str, found)), group="agent")
    return found


def spec(devices: dict[str, list[str]], common: list[str] = ["/dev/null"]) -> dict[str, Any]:  # noqa: B006
    def nodes(paths: list[str]) -> list[dict[str, str]]:
        return [{"path": path} for path in paths]

    return {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": nodes(common),
            "hooks": [HOOK],
            "mounts": [MOUNT, DAEMON],
        },
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": nodes(paths)}}
            for name, paths in devices.items()
        ],
    }


ONE = spec({"1": ["/dev/nvidia1"]})
WANTED = kept_cdi.Wanted(
    hardware=HARDWARE,
    needed=["/dev/nvidia1"],
    own=["/dev/nvidia1", "/dev/dri/card1"],
    name="GPU-1",
)


@pytest.mark.parametrize(
    ("devices", "picked"),
    [
        ({"0": ["/dev/nvidia0"], "1": ["/dev/nvidia1"]}, "1"),
        ({"1": ["/dev/nvidia1"], "GPU-1": ["/dev/nvidia1", "/dev/dri/card1"]}, "GPU-1"),
        # A name that leads to another GPU, as after a reboot, is not believed.
        ({"GPU-1": ["/dev/nvidia0"], "1": ["/dev/nvidia1"]}, "1"),
        ({"all": ["/dev/nvidia0", "/dev/nvidia1"]}, None),
        ({"1": ["/dev/nvidia1", "/dev/dri/card0"]}, None),
        ({"1": ["/dev/dri/card1"]}, None),
        ({}, None),
    ],
)
def test_a_device_is_picked_by_what_it_gives(
    conf: cfg.ConfigOpts, folders: list[pathlib.Path], devices: Any, picked: str | None
) -> None:
    (folders[0] / "nvidia.yaml").write_text(yaml.safe_dump(spec(devices)))
    assert kept_cdi.fitting(conf, KIND, WANTED) == (f"{KIND}={picked}" if picked else None)
    assert kept_cdi.fitting(conf, "amd.com/gpu", WANTED) is None


def test_common_edits_count_and_a_later_folder_wins(conf, folders) -> None:
    (folders[0] / "nvidia.json").write_text(json.dumps(ONE))
    assert kept_cdi.fitting(conf, KIND, WANTED) == f"{KIND}=1"
    later = spec({"1": ["/dev/nvidia1"]}, ["/dev/nvidia0"])
    (folders[1] / "nvidia.json").write_text(json.dumps(later))
    assert kept_cdi.fitting(conf, KIND, WANTED) is None


ALIASES = "a: &a [1]\nb: [*a]\ncdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: []\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "a: [",
        ALIASES,
        "[" * 5000,
        "{\"a\":" * 100_000,
        json.dumps({**ONE, "cdiVersion": "x"}),
        json.dumps({**ONE, "containerEdits": []}),
        json.dumps({**ONE, "devices": {}}),
        json.dumps({**ONE, "note": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}),
        json.dumps({**ONE, "note": "x" * 1024 * 1024}),
        json.dumps(spec({str(number): [f"/dev/nvidia{number}"] for number in range(1025)})),
    ],
)
def test_a_file_that_cannot_be_used_is_left_out_and_the_others_count(
    conf: cfg.ConfigOpts, folders: list[pathlib.Path], text: str
) -> None:
    (folders[1] / "bad.yaml").write_text(text)
    assert kept_cdi.fitting(conf, KIND, WANTED) is None
    (folders[0] / "nvidia.json").write_text(json.dumps(ONE))
    assert kept_cdi.fitting(conf, KIND, WANTED) == f"{KIND}=1"


def test_what_is_copied_is_all_in_one_file(
    conf: cfg.ConfigOpts, folders: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    (folders[0] / "nvidia.json").write_text(json.dumps(spec({"1": ["/dev/zero", "/dev/nvidia99"]})))
    copied = kept_cdi.named(conf, [f"{KIND}=1"])
    own = base.ContainerEdits(
        device_nodes=("/dev/null", "/dev/full"),
        env={"CYBORG_PCI_X": "1"},
        hooks=(base.Hook(name="poststop", path="/bin/true"),),
        cdi_devices=(f"{KIND}=1",),
    )
    cdi_files.Folder(tmp_path / "cdi").write(ARQ, "0" * 12, ARQ, own, copied)
    (path,) = (tmp_path / "cdi").glob("*.json")
    found = json.loads(path.read_text())
    jsonschema.Draft7Validator(cdi_schema.SCHEMA).validate(found)
    assert found["cdiVersion"] == "0.6.0"
    (device,) = found["devices"]
    edits = device["containerEdits"]
    # The one that is not there is left out, and no node is named twice.
    nodes = [node["path"] for node in edits["deviceNodes"]]
    assert nodes == ["/dev/null", "/dev/zero", "/dev/full"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "CYBORG_PCI_X=1"]
    assert edits["hooks"] == [HOOK, {"hookName": "poststop", "path": "/bin/true"}]
    assert edits["mounts"] == [MOUNT]
    with pytest.raises(FileNotFoundError, match="has the CDI device"):
        kept_cdi.named(conf, [f"{KIND}=2"])


def test_what_a_tool_has_said_is_kept_for_one_accelerator(
    conf: cfg.ConfigOpts, folders: list[pathlib.Path]
) -> None:
    text = yaml.safe_dump(spec({"0": ["/dev/nvidia0"], "1": ["/dev/nvidia1"]}))
    name = kept_cdi.say(conf, text, WANTED)
    assert name == "said.cyborg.openstack.org/gpu=GPU-1"
    (device,) = kept_cdi.named(conf, [name])
    assert device.nodes == {"/dev/null", "/dev/nvidia1"}
    with pytest.raises(ValueError, match="gives \\['/dev/nvidia1'\\] and nothing else"):
        kept_cdi.say(conf, yaml.safe_dump(spec({"0": ["/dev/nvidia0"]})), WANTED)


def test_no_hook_has_another_moment() -> None:
    with pytest.raises(ValueError, match="hook 'later' is not one of"):
        base.Hook(name="later", path="/bin/true")
