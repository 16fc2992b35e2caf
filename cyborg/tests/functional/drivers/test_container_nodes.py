# SPDX-License-Identifier: Apache-2.0
"""The device nodes that a container gets of each kind of accelerator, on simulated hosts."""

from __future__ import annotations

import json
import logging
import logging.handlers
import pathlib
from typing import Any, NamedTuple

import pytest
import yaml

from cyborg.drivers import base, container_facts, pci, privileged, registry
from cyborg.drivers.nvidia import containers
from cyborg.tests.contract import cdi_rounds, passes

UUID = "11111111-2222-3333-4444-555555555555"
GPU = "GPU-{uuid}"


class Kind(NamedTuple):
    """A kind of accelerator: its card and driver, and the nodes by what makes them.

    ``own`` are below the function in sysfs, ``host`` elsewhere; ``never`` are below the function
    too, each with its subsystem.
    """

    card: str
    driver: str
    own: dict[str, str]
    host: dict[str, str] = {}  # noqa: RUF012 - never changed
    never: dict[str, tuple[str, str]] = {}  # noqa: RUF012 - never changed


RDMA = {"devices/virtual/misc/rdma_cm": "infiniband/rdma_cm"}
ASCEND = {
    f"devices/virtual/{name}/{name}": name
    for name in ("davinci_manager", "devmm_svm", "hisi_hdc")
}
MEI = {"i915.mei-gscfi.768/mei/mei0": ("mei", "mei0")}
FLASH = {"xe.nvm.768/mtd/mtd0": ("mtd", "mtd0"), "xe.nvm.768/mtd/mtd0/mtdblock0": ("x", "mtd0b")}
MAD = {
    "infiniband_mad/umad0": ("infiniband_mad", "infiniband/umad0"),
    "infiniband_mad/issm0": ("infiniband_mad", "infiniband/issm0"),
    "ptp/ptp0": ("ptp", "ptp0"),
    "mlx5_core.fwctl.0/fwctl/fwctl0": ("fwctl", "fwctl/fwctl0"),
}
IDXD = {"dsa0/wq0.0/dsa!wq0.0": "dsa/wq0.0", "dsa0/wq0.1/dsa!wq0.1": "dsa/wq0.1"}
KINDS = {
    "intel_gpu": Kind("flex170", "intel_gpu_driver", {"drm/renderD130": "dri/renderD130"}, {}, MEI),
    "intel_xe": Kind("arc-pro", "intel_gpu_driver", {"drm/renderD13": "dri/renderD13"}, {}, FLASH),
    "gaudi": Kind(
        "gaudi2",
        "habana_driver",
        {
            "accel/accel_controlD0": "accel/accel_controlD0",
            "habanalabs.cn.0/ib.0/infiniband_verbs/uverbs0": "infiniband/uverbs0",
        },
        RDMA,
    ),
    "ascend": Kind("ascend310", "huawei_ascend_driver", {"davinci/davinci0": "davinci0"}, ASCEND),
    "ascend_beside": Kind(
        "ascend310",
        "huawei_ascend_driver",
        {},
        {**ASCEND, "devices/virtual/devdrv/davinci5": "davinci5"},
    ),
    "dsa": Kind("dsa", "intel_dsa_driver", IDXD),
    "iaa": Kind("iaa", "intel_dsa_driver", {"iax1/wq1.0/iax!wq1.0": "iax/wq1.0"}),
    "qat": Kind("qat-4xxx", "intel_qat_driver", {}, {}, {"a/qat_adf_ctl": ("mei", "ctl")}),
    "dfl": Kind(
        "n3000",
        "intel_fpga_driver",
        {
            "fpga_region/region0/dfl-fme.9": "dfl-fme.9",
            "fpga_region/region0/dfl-port.9": "dfl-port.9",
        },
        {},
        {"fpga_region/region0/dfl-fme.9/dfl_dev.9/mtd/mtd0": ("mtd", "mtd0")},
    ),
    "xilinx": Kind(
        "u250",
        "xilinx_fpga_driver",
        {"drm/renderD132": "dri/renderD132"},
        {},
        {"xrt_mgmt/xclmgmt256": ("xrt_mgmt", "xclmgmt256")},
    ),
    "nic": Kind(
        "connectx6", "nic_driver", {"infiniband_verbs/uverbs1": "infiniband/uverbs1"}, RDMA, MAD
    ),
    "amd": Kind(
        "mi210",
        "amd_gpu_driver",
        {"drm/renderD133": "dri/renderD133"},
        {"devices/virtual/kfd/kfd": "kfd"},
        {"drm/card0/card0-DP-1/drm_dp_aux0": ("drm_dp_aux_dev", "drm_dp_aux0")},
    ),
}


def put(host: Any, place: str, name: str, subsystem: str = "misc") -> None:
    """Let a device of the host have a node."""
    host.files.put(f"{place}/uevent", f"MAJOR=239\nMINOR=0\nDEVNAME={name}\n")
    if not host.files.path(f"{place}/subsystem").is_symlink():
        host.files.link(f"{place}/subsystem", f"class/{subsystem}")


def nodes(host: Any, *names: str) -> None:
    """Let the host have these nodes, whatever its kernel tells of them."""
    (host.root / "dev").mkdir(exist_ok=True)
    for name in names:
        (host.root / "dev" / name).touch()


def handle_of(address: str) -> base.HeldHandle:
    place = pci.split(address)
    path = base.ControlPath(cpid_type="PCI", cpid_info=place)
    return base.HeldHandle(
        attach_type="PCI", attach_info=place, uuid=UUID, arq="a", control_path=path
    )


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_container_gets_the_nodes_of_its_accelerator_and_no_others(
    simulate: Any, kind: Kind
) -> None:
    host = simulate({"cards": [kind.card, "tenstorrent"]})
    address = host.card(kind.card)
    held = handle_of(address)
    before = set(host.call(passes.container_edits, kind.driver, "", held).device_nodes)
    for place, name in kind.own.items():
        put(host, f"{host.path(address)}/{place}", name)
    for place, (subsystem, name) in kind.never.items():
        put(host, f"{host.path(address)}/{place}", name, subsystem)
    for place, name in kind.host.items():
        put(host, place, name)
    put(host, f"{host.path(host.card('tenstorrent'))}/tenstorrent/0", "tenstorrent/0")

    found = host.call(passes.container_edits, kind.driver, "", held).device_nodes

    new = {f"/dev/{name}" for name in (*kind.own.values(), *kind.host.values())}
    assert set(found) == before | new
    assert list(found) == sorted(set(found))
    assert before <= {"/dev/dri/card0", "/dev/accel/accel0"}


def test_of_several_cards_that_the_kernel_does_not_tell_apart_none_gets_a_node(
    simulate: Any,
) -> None:
    host = simulate({"cards": ["ascend310", "ascend310"]})
    for number in (0, 1):
        put(host, f"devices/virtual/devdrv/davinci{number}", f"davinci{number}")
    held = handle_of(host.card("ascend310", 0))
    found = host.call(passes.container_edits, "huawei_ascend_driver", "", held)
    assert found.device_nodes == ()


def test_what_vfio_has_is_reached_by_it_alone(simulate: Any) -> None:
    cards = {
        "qat-4xxx": "intel_qat_driver", "h100": "nvidia_gpu_driver", "mi210": "amd_gpu_driver"
    }
    host = simulate({"cards": [{"card": card, "driver": "vfio-pci"} for card in cards]})
    nodes(host, "nvidia0", "nvidiactl")

    def found(card: str) -> tuple[str, ...]:
        held = handle_of(host.card(card))
        return host.call(passes.container_edits, cards[card], "", held).device_nodes

    for card in cards:
        group = host.files.target(f"{host.path(host.card(card))}/iommu_group").rpartition("/")[2]
        assert found(card) == ("/dev/vfio/vfio", f"/dev/vfio/{group}")
    put(host, "devices/virtual/misc/iommu", "iommu")
    for number, card in enumerate(cards):
        name = f"vfio{number}"
        put(host, f"{host.path(host.card(card))}/vfio-dev/{name}", f"vfio/devices/{name}")
        assert found(card) == ("/dev/iommu", f"/dev/vfio/devices/{name}")


# NVIDIA's nodes and libraries.

BESIDE = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
TOOL = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$*" in
*--help*) echo 'OPTIONS: --output {extra}';;
*) echo 'time="2026-11-29T00:00:00Z" level=info msg="Using /usr/lib/libcuda.so.1"'
   cat {folder}/said;;
esac
"""


class Given(NamedTuple):
    """The edits that a driver names for each of two handles of one GPU, and what it logged."""

    first: base.ContainerEdits
    second: base.ContainerEdits
    warnings: list[str]


def given(folder: str, address: str) -> Given:
    """What the driver says of a GPU, twice, with NVIDIA's tool in a folder."""
    privileged.programming.set_client_mode(False)
    privileged._NVIDIA_CTK = f"{folder}/nvidia-ctk"
    text = f"[DEFAULT]\nstate_path = {folder}/state\n[agent]\ncdi_spec_dirs = {folder}/etc\n"
    driver = registry.load(passes.configured(text, ["nvidia_gpu_driver"], "host-1")).drivers
    held, logged = handle_of(address), logging.handlers.BufferingHandler(1000)
    logged.setLevel(logging.WARNING)
    containers.LOG.addHandler(logged)
    try:
        found = [container_facts.of(driver["nvidia_gpu_driver"], held) for _ in range(2)]
    finally:
        containers.LOG.removeHandler(logged)
    return Given(found[0], found[1], [record.getMessage() for record in logged.buffer])


@pytest.fixture
def gpus(simulate: Any, tmp_path: pathlib.Path) -> Any:
    """A host with two GPUs and their nodes, but for one that no GPU has."""
    host = simulate({"cards": ["h100", "h100"]})
    nodes(host, "nvidia0", "nvidia1", "nvidia-nvswitch0", *BESIDE[:3])
    (tmp_path / "etc").mkdir()
    return host


def facts(host: Any, number: int) -> tuple[str, str, str]:
    """The address of a GPU, its uuid and its node."""
    address = host.card("h100", number)
    text = (host.root / f"proc/driver/nvidia/gpus/{address}/information").read_text()
    pairs = dict(line.split(":", 1) for line in text.splitlines())
    return address, pairs["GPU UUID"].strip(), f"/dev/nvidia{pairs['Device Minor'].strip()}"


def spec(devices: dict[str, str]) -> str:
    document = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": node}]}}
            for name, node in devices.items()
        ],
    }
    return yaml.safe_dump(document)


def tool(folder: pathlib.Path, said: str, extra: str = "") -> None:
    (folder / "said").write_text(said)
    path = folder / "nvidia-ctk"
    path.write_text(TOOL.format(folder=folder, extra=extra))
    path.chmod(0o755)


def test_a_gpu_has_its_own_node_and_those_of_the_driver(gpus: Any, tmp_path: pathlib.Path) -> None:
    for number in (0, 1):
        address, _uuid, node = facts(gpus, number)
        first, second, warnings = gpus.call(given, str(tmp_path), address)
        assert first == second
        (warning,) = warnings
        assert "device nodes of GPUs alone" in warning
        assert "Install nvidia-container-toolkit" in warning
        assert set(first.device_nodes) == {node, *(f"/dev/{name}" for name in BESIDE[:3])}
        assert first.cdi_devices == ()
        assert first.env == {f"CYBORG_PCI_{UUID.replace('-', '_')}": address}


def test_its_libraries_are_those_of_the_kept_file(gpus: Any, tmp_path: pathlib.Path) -> None:
    address, uuid, node = facts(gpus, 1)
    _, other, others = facts(gpus, 0)
    tool(tmp_path, "nothing")
    for name, names in ((uuid, {other: others, uuid: node}), ("1", {"0": others, "1": node})):
        (tmp_path / "etc/nvidia.yaml").write_text(spec(names))
        found = gpus.call(given, str(tmp_path), address).second
        assert found.cdi_devices == (f"nvidia.com/gpu={name}",)
        assert node in found.device_nodes
    assert not (tmp_path / "asked").exists()


def test_the_file_of_a_handle_has_the_nodes_and_the_libraries(
    gpus: Any, tmp_path: pathlib.Path
) -> None:
    _address, uuid, node = facts(gpus, 0)
    kept = yaml.safe_load(spec({uuid: node}))
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}
    kept["containerEdits"]["hooks"] = [hook]
    (tmp_path / "etc/nvidia.yaml").write_text(yaml.safe_dump(kept))
    text = f"[DEFAULT]\nstate_path = {tmp_path}\n"
    more = f"cdi_spec_dirs = {tmp_path}/etc\n"
    done = gpus.call(cdi_rounds.go, "nvidia_gpu_driver", text, str(tmp_path / "cdi"), more)
    (device,) = done.file["devices"]
    edits = device["containerEdits"]
    assert {each["path"] for each in edits["deviceNodes"]} == {
        node, *(f"/dev/{name}" for name in BESIDE[:3])
    }
    assert edits["hooks"] == [hook]
    assert done.file["cdiVersion"] == "0.6.0"


@pytest.mark.parametrize("extra", ["", "--device-id"])
def test_without_such_a_file_the_tool_is_asked_once(
    gpus: Any, tmp_path: pathlib.Path, extra: str
) -> None:
    address, uuid, node = facts(gpus, 1)
    _, _other, others = facts(gpus, 0)
    # A file that leads to another GPU is not believed.
    (tmp_path / "etc/nvidia.yaml").write_text(spec({uuid: others}))
    tool(tmp_path, spec({"0": others, "1": node}), extra)
    first, second, warnings = gpus.call(given, str(tmp_path), address)
    assert (first, warnings) == (second, [])
    assert first.cdi_devices == (f"said.cyborg.openstack.org/gpu={uuid}",)
    kept = json.loads((tmp_path / f"state/cdi/{uuid}.json").read_text())
    assert kept["devices"][0]["containerEdits"]["deviceNodes"] == [{"path": node}]
    asked = (tmp_path / "asked").read_text().splitlines()
    own = f" --device-id={uuid}" if extra else ""
    assert asked == ["cdi generate --help", f"cdi generate{own}"]


@pytest.mark.parametrize("said", ["", "nothing", "a: ["])
def test_what_the_tool_cannot_say_costs_the_libraries_alone(
    gpus: Any, tmp_path: pathlib.Path, said: str
) -> None:
    address, _uuid, node = facts(gpus, 0)
    tool(tmp_path, said)
    found = gpus.call(given, str(tmp_path), address).first
    assert node in found.device_nodes
    assert found.cdi_devices == ()


def test_amds_kept_file_is_used_by_what_it_gives(simulate: Any, tmp_path: pathlib.Path) -> None:
    host = simulate({"cards": ["mi210", "mi210"]})
    for number in (0, 1):
        place = host.path(host.card("mi210", number))
        put(host, f"{place}/drm/renderD{128 + number}", f"dri/renderD{128 + number}")
    names = {"0": "/dev/dri/renderD128", "1": "/dev/dri/renderD129", "all": "/dev/dri/renderD130"}
    kept = yaml.safe_load(spec(names).replace("nvidia.com/gpu", "amd.com/gpu"))
    for each in kept["devices"]:
        each["containerEdits"]["env"] = [f"OF={each['name']}"]
    (tmp_path / "amd.json").write_text(json.dumps(kept))
    more = f"cdi_spec_dirs = {tmp_path}\n"
    text = f"[DEFAULT]\nstate_path = {tmp_path}\n"
    done = host.call(cdi_rounds.go, "amd_gpu_driver", text, str(tmp_path / "cdi"), more)
    (device,) = done.file["devices"]
    assert "OF=0" in device["containerEdits"]["env"]
