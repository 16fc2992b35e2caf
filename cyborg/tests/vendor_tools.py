# SPDX-License-Identifier: Apache-2.0
"""Vendors' tools that program cards, as recorded."""

from __future__ import annotations

import json
import math
import os
import pathlib
import struct
import uuid
from collections.abc import Callable

from cyborg.drivers import base, pci, privileged
from cyborg.drivers.intel import fpga as intel_fpga
from cyborg.drivers.xilinx import fpga as xilinx_fpga
from cyborg.tests.contract import passes

OLD = "d8424dc4a4a3c413f89e433683f9040b"
AFU = "9aeffe5f84570612c000c9660d824272"
REGION = "9926ab6d6c925a68aabca7d84c545738"
XCLBIN = "0f5b1c6e-7f0d-4a57-9a11-3a1d2c4b5e6f"


def gbs(afu: str = AFU, region: str = REGION, *, signed: bool = False) -> bytes:
    """A bitstream for an Intel card."""
    cluster = {"accelerator-type-uuid": str(uuid.UUID(afu)), "total-contexts": 1}
    image = {"interface-uuid": str(uuid.UUID(region)), "accelerator-clusters": [cluster]}
    metadata = json.dumps({"version": 1, "afu-image": image}).encode()
    blocks = struct.pack("<I", 0xB6EAFD19).ljust(1024, b"\0") if signed else b""
    header = b"XeonFPGA\xb7GBSv001" + struct.pack("<I", len(metadata))
    return blocks + header + metadata + b"\xff" * 4096


def xclbin(identity: str = XCLBIN) -> bytes:
    """A bitstream for a Xilinx card."""
    return b"xclbin2\0".ljust(416, b"\0") + uuid.UUID(identity).bytes + b"\xff" * 4096


def settings(state: str, timeout: int = 60) -> str:
    """What stands in the file of an agent that keeps its files in a directory."""
    return f"[DEFAULT]\nstate_path = {state}\n[programming]\ntool_timeout = {timeout}\n"


def handles(address: str) -> tuple[base.AttachHandle, ...]:
    """By what the card at this address is given out on the host that this process sees."""
    functions = pci.scan()
    slot = [each for each in functions if each.rpartition(".")[0] == address.rpartition(".")[0]]
    return tuple(
        base.AttachHandle(attach_type="PCI", attach_info=pci.split(each))
        for each in functions[address].vfs or slot
    )


def show_simulation(tool: pathlib.Path) -> None:
    """Let the tool see the sysfs of this process, whose environment it is not given."""
    names = ("LD_PRELOAD", "UMOCKDEV_DIR")
    simulated = "\n".join(f"{each}={os.environ[each]}" for each in names if each in os.environ)
    tool.with_name("simulated").write_text(simulated)


def attempt(
    name: str,
    tool: str,
    bitstream: str,
    address: str,
    timeout: int = 60,
    function: str | None = None,
    without: str | None = None,
    until: float = math.inf,
) -> str:
    """Program a card on the host that this process sees; what came of it, in words.

    ``function`` is what the image says, ``without`` a function that is not of the deployable, and
    ``until`` when the permit ends.
    """
    show_simulation(pathlib.Path(tool))
    privileged.programming.set_client_mode(False)
    privileged._FPGACONF = privileged._XBMGMT = tool
    privileged._DFL_REGION = [tool]
    privileged._DEV = pathlib.Path(tool).parent
    state = pathlib.Path(bitstream).parent / "state"
    conf = passes.configured(settings(str(state), timeout), [], "host-1")
    drivers: dict[str, Callable[..., base.Programmable]] = {
        "intel": intel_fpga.IntelFpgaDriver,
        "xilinx": xilinx_fpga.XilinxFpgaDriver,
    }
    path = base.ControlPath(cpid_type="PCI", cpid_info=pci.split(address))
    target = base.ProgramTarget(
        deployable="host-1_card",
        control_path=path,
        attach_handles=tuple(
            each for each in handles(address) if pci.join(each.attach_info) != without
        ),
        function=function,
        until=until,
    )
    try:
        done = drivers[name](conf).program(target, pathlib.Path(bitstream))
    except Exception as exc:  # noqa: BLE001 - whatever a driver raises
        return f"{type(exc).__name__}: {exc}"
    return f"{done.function} by {done.verified_by}"


def asked(tool: pathlib.Path) -> list[str] | None:
    """What the tool was last asked, if it was."""
    try:
        return (tool.parent / "arguments").read_text().splitlines()
    except FileNotFoundError:
        return None


def shows(path: str, text: str) -> str:
    """The behaviour of a tool after which sysfs shows this."""
    return f"echo {text} > /sys/bus/pci/devices/{path}\n"


def port_of(simulated, card: str) -> str:
    """Where a card of the older driver shows its function."""
    address = simulated.card(card)
    place = simulated.root / "sys/bus/pci/devices" / address
    (found,) = place.glob("fpga/*/intel-fpga-port.*/afu_id")
    return f"{address}/{found.relative_to(place)}"


def user_of(simulated) -> str:
    return simulated.card("u250")[:-1] + "1"
