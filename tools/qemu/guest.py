# SPDX-License-Identifier: Apache-2.0
"""Tests of the agent's own code that run inside a virtual machine, on a real kernel.

    guest.py            run them, and print one line of JSON after MARK for each
    guest.py --files    print what of Python has to be in the machine for that, as JSON

The machine has one NVMe controller, on NUMA node 1 behind a root port, that can have 8 virtual
functions (VFs), a device that is there to be pulled, and an IOMMU. The tests build on each other,
in the order of the file.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Files that were opened, where it matters what has to be in the machine.
_opened: set[str] = set()
if sys.argv[1:] == ["--files"]:
    sys.addaudithook(
        lambda event, arguments: _opened.add(str(arguments[0])) if event == "open" else None
    )

# oslo.privsep and keystoneauth can do without them, and to load them takes long in the machine.
sys.modules.update(dict.fromkeys(("eventlet", "osprofiler")))  # type: ignore[arg-type]
warnings.simplefilter("ignore")

from oslo_config import cfg  # noqa: E402

from cyborg import conf as cyborg_conf  # noqa: E402
from cyborg.agent import discovery_preview, hotplug, sriov  # noqa: E402
from cyborg.drivers import base, pci, privileged  # noqa: E402
from cyborg.drivers.nvme import controllers  # noqa: E402
from cyborg.drivers.pci import passthrough  # noqa: E402

MARK = "cyborg-qemu:"
VENDOR, PRODUCT = "1b36", "0010"
#: The vendor of a device that is good for nothing, and that no driver takes.
EDU = "1234"
#: Seconds for whatever the kernel has to do; software emulation on a busy machine is slow.
PATIENCE = 60
#: What libraries read of themselves and of their plugins.
_METADATA = {"METADATA", "entry_points.txt"}
_DEVICES = Path("/sys/bus/pci/devices")


def configuration(**agent: object) -> cfg.ConfigOpts:
    """The options of an agent with the drivers of the machine's hardware."""
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(args=[], default_config_files=[], default_config_dirs=[])
    conf.set_override("host", "guest")
    spec = json.dumps({"vendor_id": VENDOR, "product_id": PRODUCT})
    conf.set_override("device_spec", [spec], group="nvme")
    conf.set_override("device_spec", [spec], group="pci")
    agent = {"enabled_drivers": ["nvme_driver"], "driver_timeout": PATIENCE, **agent}
    for name, value in agent.items():
        conf.set_override(name, value, group="agent")
    return conf


def controller() -> pci.Function:
    """The controller itself."""
    (found,) = [
        function
        for function in pci.scan().values()
        if (function.vendor, function.device) == (VENDOR, PRODUCT) and function.pf is None
    ]
    return found


def rule(count: int, **more: str) -> list[str]:
    """``[agent] sriov_spec`` for the controller."""
    return [json.dumps({"vendor_id": VENDOR, "product_id": PRODUCT, "numvfs": count, **more})]


def error_of(function: Callable[..., None], *arguments: Any) -> str:
    """The name of the error that the kernel answers with, or an empty text."""
    try:
        function(*arguments)
    except OSError as exc:
        return errno.errorcode[exc.errno or 0]
    return ""


def test_the_walk_reads_what_the_kernel_shows() -> None:
    """Ids, class, driver, NUMA node, IOMMU group and what SR-IOV offers."""
    function = controller()
    assert function.class_code == "010802", function
    assert function.driver == "nvme", function
    assert function.numa_node == 1, function
    assert function.iommu_group is not None, function
    assert (function.sriov_totalvfs, function.vfs) == (8, ()), function


def test_the_driver_reports_the_controller() -> None:
    """A whole pass, as the agent and its command make it."""
    found = discovery_preview.make(configuration())
    assert not found.failed, found.findings.errors
    (device,) = found.findings.devices["nvme_driver"]
    (deployable,) = device.deployables
    address = controller().address
    assert deployable.name == f"guest_{address}", deployable
    assert deployable.attributes["numa_node"] == 1, deployable
    assert deployable.attributes["serial"] == "cafe0", deployable
    (handle,) = deployable.attach_handles
    assert pci.join(handle.attach_info) == address, handle


def test_what_a_guest_has_left_is_erased() -> None:
    """By commands of the real kernel to a controller that has no way to do it by itself."""
    address = controller().address
    disk = Path("/dev/nvme0n1")
    secret = b"secret" * 1000
    with disk.open("r+b", buffering=0) as opened:
        opened.write(secret.ljust(8192, b"!"))
    place = base.ControlPath(cpid_type="PCI", cpid_info=pci.split(address))
    handle = base.HeldHandle(
        attach_type="PCI",
        attach_info=pci.split(address),
        uuid="11111111-2222-3333-4444-555555555555",
        arq="66666666-7777-8888-9999-000000000000",
        control_path=place,
    )
    assert privileged.nvme_sanitize_methods(address) == []
    controllers.NvmeDriver(configuration()).clean(handle)
    with disk.open("rb", buffering=0) as opened:
        assert opened.read(8192) == bytes(8192)


def test_virtual_functions_are_made_and_bound_for_guests() -> None:
    """By the operator's rule."""
    wanted = configuration(sriov_spec=rule(4, vf_driver="vfio-pci"))
    assert sriov.Configurator(wanted, threading.Lock()).apply() == {}
    pf, functions = controller(), pci.scan()
    assert len(pf.vfs) == 4, pf
    assert [functions[vf].driver for vf in pf.vfs] == ["vfio-pci"] * 4, functions
    groups = {functions[vf].iommu_group for vf in pf.vfs}
    assert len(groups) == 4, groups
    assert all(Path(f"/dev/vfio/{group}").is_char_device() for group in groups), groups
    assert pf.driver == "nvme", pf
    assert sriov.preview(wanted) == []


def test_virtual_functions_are_offered() -> None:
    """With the physical function's address, and in its place."""
    conf = configuration(enabled_drivers=["pci_driver"])
    found = discovery_preview.make(conf)
    assert not found.failed, found.findings.errors
    pf = controller()
    deployables = {
        deployable.name: deployable
        for device in found.findings.devices["pci_driver"]
        for deployable in device.deployables
    }
    assert set(deployables) == {f"guest_{vf}" for vf in pf.vfs}, deployables
    for deployable in deployables.values():
        assert deployable.attributes["parent_addr"] == pf.address, deployable


def test_no_virtual_function_is_taken_from_a_guest() -> None:
    """Whoever has opened an IOMMU group has the function, and nobody who has not."""
    pf = controller()
    assert error_of(privileged.set_numvfs, pf.address, 99) == "ERANGE"
    group = pci.scan()[pf.vfs[2]].iommu_group
    held = os.open(f"/dev/vfio/{group}", os.O_RDWR)
    assert error_of(privileged.set_numvfs, pf.address, 2) == "EBUSY"
    assert controller().vfs == pf.vfs
    os.close(held)
    assert error_of(privileged.set_numvfs, pf.address, 2) == ""
    assert len(controller().vfs) == 2


def test_a_function_goes_over_to_another_driver_and_back() -> None:
    """Whatever driver has it, and without losing another."""
    address = controller().vfs[0]
    assert error_of(privileged.bind_driver, address, "vfio-pci") == ""
    assert error_of(privileged.bind_driver, address, "vfio-pci") == ""
    assert pci.scan()[address].driver == "vfio-pci"
    assert error_of(privileged.bind_driver, address, "unheard-of") == "ENODEV"
    assert pci.scan()[address].driver == "vfio-pci"
    (_DEVICES / address / "driver" / "unbind").write_text(address)
    (_DEVICES / address / "driver_override").write_text("\n")
    assert pci.scan()[address].driver is None


def test_a_function_that_is_pulled_is_gone_and_comes_back() -> None:
    """The kernel's events tell the agent of both."""
    conf = configuration(enabled_drivers=["pci_driver"])
    conf.set_override("device_spec", [json.dumps({"vendor_id": EDU})], group="pci")

    def found() -> list[str]:
        preview = discovery_preview.make(conf)
        assert not preview.failed, preview.findings.errors
        return [
            pci.join(handle.attach_info)
            for device in preview.findings.devices["pci_driver"]
            for deployable in device.deployables
            for handle in deployable.attach_handles
        ]

    looked = threading.Semaphore(0)
    watcher = hotplug.EventWatcher(looked.release)
    watcher.start()
    (address,) = found()
    (_DEVICES / address / "remove").write_text("1")
    assert looked.acquire(timeout=PATIENCE)
    assert found() == []
    Path("/sys/bus/pci/rescan").write_text("1")
    assert looked.acquire(timeout=PATIENCE)
    assert found() == [address]
    watcher.stop()


def _run() -> int:
    tests = {name: each for name, each in globals().items() if name.startswith("test_")}
    failed = 0
    for name, test in tests.items():
        begin = time.monotonic()
        fault = None
        try:
            test()
        except BaseException:  # noqa: BLE001 - whatever it is, the others are still run
            fault = traceback.format_exc()
            failed += 1
        seconds = round(time.monotonic() - begin, 3)
        line = {"name": name, "seconds": seconds, "fault": fault}
        print(f"\n{MARK}{json.dumps(line)}", flush=True)
    return int(failed > 0)


def _files() -> dict[str, Any]:
    """Modules that the tests load, by name, what they read, and where Python looks for them."""
    discovery_preview.make(configuration(enabled_drivers=["pci_driver"]))
    files = {
        name: module.__file__
        for name, module in sys.modules.items()
        if getattr(module, "__file__", None) and name != "__main__"
    }
    owners = importlib.metadata.packages_distributions()
    loaded = {name.partition(".")[0] for name in files} | {"cyborg"}
    data = {
        str(file.locate())
        for owner in {owner for name in loaded for owner in owners.get(name, ())}
        for file in importlib.metadata.files(owner) or ()
        if file.name in _METADATA and file.parent.suffix == ".dist-info"
    }
    places = tuple(f"{place}/" for place in sys.path[1:] if place)
    data |= {
        path
        for path in _opened
        if path.startswith(places)
        and not path.endswith((".py", ".pyc", ".so"))
        and ".dist-info/" not in path
        and Path(path).is_file()
    }
    return {"modules": files, "data": sorted(data), "path": sys.path[1:]}


if __name__ == "__main__":
    if sys.argv[1:] == ["--files"]:
        print(json.dumps(_files()))
    else:
        assert passthrough.PciPassthroughDriver
        privileged.act_alone()
        sys.exit(_run())
