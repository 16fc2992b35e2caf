# SPDX-License-Identifier: Apache-2.0
"""Everything that Cyborg writes to a host, and the only code that needs privileges for it.

Each function runs in a helper process that oslo.privsep starts at the first call, with the one
capability that writing to sysfs takes; what erases disks runs in another, which has one more, and
the vendors' tools that program FPGAs are run by a third.
Arguments come from messages, so each is checked here, behind the border, before it becomes part of
a path. What the kernel answers is raised as it is: an :class:`OSError` with its number, which names
the file and what was written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar, cast

from oslo_privsep import capabilities, priv_context

from cyborg.drivers import nvme_admin, tool_runs

P = ParamSpec("P")
T = TypeVar("T")

#: ``[cyborg_sys_admin]``. DAC_OVERRIDE lets the helper run as another user than root.
context = priv_context.PrivContext(
    "cyborg",
    cfg_section="cyborg_sys_admin",
    pypath=f"{__name__}.context",
    capabilities=[capabilities.CAP_DAC_OVERRIDE],
)

#: ``[cyborg_nvme]``, a helper of its own: commands to a disk take more than writing to sysfs.
erasing = priv_context.PrivContext(
    "cyborg",
    cfg_section="cyborg_nvme",
    pypath=f"{__name__}.erasing",
    capabilities=[capabilities.CAP_DAC_OVERRIDE, capabilities.CAP_SYS_ADMIN],
)

#: ``[cyborg_program]``, a helper of its own, which has to be root: a vendor's tool that any other
#: user starts has no capability, whatever the helper has.
programming = priv_context.PrivContext(
    "cyborg",
    cfg_section="cyborg_program",
    pypath=f"{__name__}.programming",
    capabilities=[capabilities.CAP_DAC_OVERRIDE],
)

_FPGACONF = "/usr/bin/fpgaconf"
_XBMGMT = "/opt/xilinx/xrt/bin/xbmgmt"

_PCI = pathlib.Path("/sys/bus/pci")
_MDEV_PARENTS = pathlib.Path("/sys/class/mdev_bus")
_MDEVS = pathlib.Path("/sys/bus/mdev/devices")

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NAMESPACE = re.compile(r"nvme\d+(c\d+)?n\d+", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
#: Drivers, mdev types and parents of mediated devices: no slash, and no dot in front.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}", re.ASCII)


def act_alone() -> None:
    """Let a process that is root act by itself, without a helper, unless the operator names one."""
    for each in (context, erasing, programming):
        if os.geteuid() == 0 and not each.conf.helper_command:
            each.set_client_mode(False)


def _privileged(function: Callable[P, T]) -> Callable[P, T]:
    return cast("Callable[P, T]", context.entrypoint(function))


@_privileged
def create_mdev(parent: str, mdev_type: str, uuid: str) -> None:
    """Create a mediated device; one that is there already, of this type and parent, is well.

    :raises OSError: EEXIST where the uuid is another device's, else what the kernel says
    """
    types = _MDEV_PARENTS / _checked(_NAME, parent) / "mdev_supported_types"
    try:
        _write(types / _checked(_NAME, mdev_type) / "create", _checked(_UUID, uuid))
    except FileExistsError:
        if _mdev(uuid) != (parent, mdev_type):
            raise


@_privileged
def remove_mdev(uuid: str) -> None:
    """Remove a mediated device; one that is gone already is well.

    :raises OSError: what the kernel says, EBUSY for one in use
    """
    path = _MDEVS / _checked(_UUID, uuid)
    try:
        _write(path / "remove", "1")
    except OSError:
        if path.exists():
            raise


@_privileged
def set_vgpu_type(address: str, number: str) -> None:
    """Give a virtual function of an NVIDIA card the vGPU type of that number, or none for 0.

    :raises OSError: EBUSY where a guest uses the one it has, else what the kernel says
    """
    path = _PCI / "devices" / _checked(_ADDRESS, address) / "nvidia/current_vgpu_type"
    if number == "0" and not path.exists():
        return  # with the function, or with its driver, the type is gone
    if path.read_text().strip() != _checked(_NUMBER, number):
        _write(path, number)


@_privileged
def set_numvfs(address: str, count: int) -> None:
    """Give a physical function so many virtual ones, after removing those it has.

    :raises OSError: EBUSY where one of those may be in use, ERANGE where the card has not so many
    """
    pf = _PCI / "devices" / _checked(_ADDRESS, address)
    present = int((pf / "sriov_numvfs").read_text())
    if present == count:
        return
    if not 0 <= count <= int((pf / "sriov_totalvfs").read_text()):
        raise _error(errno.ERANGE, pf / "sriov_numvfs", str(count))
    for vf in sorted(pf.glob("virtfn*")):
        holder = _holder(vf)
        if holder is not None:
            raise OSError(errno.EBUSY, f"{vf.readlink().name} may be in use: {holder}")
    if present:
        # The kernel changes no number but 0.
        _write(pf / "sriov_numvfs", "0")
    if count:
        _write(pf / "sriov_numvfs", str(count))


@_privileged
def set_drivers_autoprobe(address: str, *, on: bool) -> None:
    """Say whether the host's drivers take the virtual functions that a physical one gets."""
    pf = _PCI / "devices" / _checked(_ADDRESS, address)
    _write(pf / "sriov_drivers_autoprobe", str(int(on)))


@_privileged
def bind_driver(address: str, driver: str) -> None:
    """Give a PCI function to a driver, whatever driver has it now, and keep it for that one.

    :raises OSError: ENODEV where the driver is not loaded or does not take the function
    """
    path = _PCI / "devices" / _checked(_ADDRESS, address)
    if not (_PCI / "drivers" / _checked(_NAME, driver)).is_dir():
        raise OSError(errno.ENODEV, f"driver {driver} is not loaded")
    _write(path / "driver_override", driver)
    if _link(path / "driver") == driver:
        return
    _unbind(path)
    _write(_PCI / "drivers_probe", address)
    if _link(path / "driver") != driver:
        raise OSError(errno.ENODEV, f"driver {driver} does not take {address}")


@_privileged
def unbind_driver(address: str) -> None:
    """Take a PCI function from its driver; it is kept for none any more."""
    path = _PCI / "devices" / _checked(_ADDRESS, address)
    _unbind(path)
    _write(path / "driver_override", "\n")


@erasing.entrypoint
def nvme_sanitize_ways(address: str) -> list[int]:
    """The numbers of the ways in which a controller can erase all that it holds."""
    with _opened(_controller(address)) as descriptor:
        return sorted(nvme_admin.ways_of(nvme_admin.identify(descriptor)))


@erasing.entrypoint
def nvme_sanitize_state(address: str) -> int:
    """The number of the state of a controller's last erasure."""
    with _opened(_controller(address)) as descriptor:
        return int(nvme_admin.state_of(nvme_admin.sanitize_log(descriptor)))


@erasing.entrypoint
def nvme_sanitize(address: str, way: int) -> None:
    """Begin to erase a controller none of whose namespaces the host uses.

    :raises OSError: EBUSY where the host uses one, else what the kernel says
    """
    with contextlib.ExitStack() as stack:
        for namespace in _namespaces(address):
            stack.enter_context(_opened(namespace, os.O_RDWR | os.O_EXCL))
        descriptor = stack.enter_context(_opened(_controller(address)))
        nvme_admin.sanitize(descriptor, nvme_admin.Sanitize(way))


@erasing.entrypoint
def nvme_zero(address: str) -> None:
    """Overwrite every namespace of a controller with zeroes; returns when that is done.

    :raises OSError: EBUSY where the host uses one, ENXIO where not all are shown, as just after
        the controller came back to the host or when a guest has detached one, else what the
        kernel says
    """
    namespaces = _namespaces(address)
    if not namespaces:
        raise OSError(errno.ENXIO, f"NVMe controller {address} shows no namespace")
    with _opened(_controller(address)) as descriptor:
        hidden = (nvme_admin.count_allocated(descriptor) or 0) - len(namespaces)
    if hidden > 0:
        sentence = f"it has {hidden} namespaces that are not attached to it"
        raise OSError(errno.ENXIO, f"NVMe controller {address} is not erased: {sentence}")
    for namespace in namespaces:
        with _opened(namespace, os.O_RDWR | os.O_EXCL) as descriptor:
            nvme_admin.zero(descriptor)


@programming.entrypoint
def fpgaconf(address: str, bitstream: str, timeout: float, lock: str) -> None:
    """Load a bitstream into the one region of an Intel card, by OPAE's tool.

    The tool holds the card's lock, the file ``lock``, for as long as it runs.

    :raises OSError: ENOENT without the tool, EAGAIN where the lock is held, ETIMEDOUT where the
        tool was ended, else it has failed
    """
    domain, bus, place = _checked(_ADDRESS, address).split(":")
    device, number = place.split(".")
    tool_runs.run(
        [
            _FPGACONF,
            *("--segment", f"0x{domain}"),
            *("--bus", f"0x{bus}"),
            *("--device", f"0x{device}"),
            *("--function", f"0x{number}"),
            _file(bitstream),
        ],
        timeout,
        _file(lock),
    )


@programming.entrypoint
def xbmgmt(address: str, bitstream: str, timeout: float, lock: str) -> None:
    """Load a bitstream into a Xilinx card, whose managing function is given, by XRT's tool.

    :raises OSError: as of :func:`fpgaconf`
    """
    place = _checked(_ADDRESS, address)
    command = [_XBMGMT, "--force", "program", "--device", place, "--user", _file(bitstream)]
    tool_runs.run(command, timeout, _file(lock))


def _file(path: str) -> str:
    """A path that no tool takes for an option."""
    if not (pathlib.Path(path).is_absolute() and pathlib.Path(path).is_file()):
        raise OSError(errno.ENOENT, f"{path!r} is no file by its full path")
    return path


def _controller(address: str) -> pathlib.Path:
    names = sorted((_PCI / "devices" / _checked(_ADDRESS, address) / "nvme").iterdir())
    return pathlib.Path("/dev", names[0].name)


def _namespaces(address: str) -> list[pathlib.Path]:
    path = _PCI / "devices" / _checked(_ADDRESS, address) / "nvme"
    names = {
        # With several ways to a namespace, the block device is named without them.
        re.sub(r"c\d+n", "n", namespace.name)
        for controller in path.iterdir()
        for namespace in controller.glob("nvme*n*")
        if _NAMESPACE.fullmatch(namespace.name)
    }
    return [pathlib.Path("/dev", name) for name in sorted(names)]


@contextlib.contextmanager
def _opened(path: pathlib.Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} cannot be part of a path in sysfs")
    return text


def _write(path: pathlib.Path, text: str) -> None:
    """One write, so that the error is the kernel's answer to it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise _error(exc.errno, path, text) from exc


def _error(number: int | None, path: pathlib.Path, text: str) -> OSError:
    # Of an error only its arguments cross from the helper: no file name of its own.
    number = number or errno.EIO
    return OSError(number, f"{os.strerror(number)}: {text.strip()!r} to {path}")


def _link(path: pathlib.Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None


def _mdev(uuid: str) -> tuple[str, str | None]:
    """Parent and type of a mediated device."""
    path = (_MDEVS / uuid).resolve()
    return path.parent.name, _link(path / "mdev_type")


def _unbind(path: pathlib.Path) -> None:
    if (path / "driver").exists():
        _write(path / "driver" / "unbind", path.name)


def _holder(vf: pathlib.Path) -> str | None:
    """Who may be using a virtual function, or None where surely nobody is."""
    if any(_UUID.fullmatch(child.name) for child in vf.iterdir()):
        return "it has a mediated device"
    driver = _link(vf / "driver")
    if driver is None:
        return None
    if "vfio" not in driver:
        return f"driver {driver} of the host has it"
    group = _link(vf / "iommu_group")
    return None if group is not None and _opens(f"/dev/vfio/{group}") else "a guest has it"


def _opens(path: str) -> bool:
    """Whether nobody has an IOMMU group: only one process may at a time."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
