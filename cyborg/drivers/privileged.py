# SPDX-License-Identifier: Apache-2.0
"""Everything that Cyborg writes to a host: the only code that needs privileges.

Each function runs in a helper process that oslo.privsep starts at the first call. There are four:
one may write to sysfs, one that erases disks has one capability more, one runs the vendors' tools
that program FPGAs and divide GPUs, and one sees which files other processes have open.
Arguments come from messages, so the helper checks each before it becomes part of a path. An error
of the kernel is raised as an :class:`OSError` with its number, which names the file and the text.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ParamSpec, TypeVar, cast

from oslo_privsep import capabilities, priv_context

from cyborg.drivers import helper_channel, open_nodes, signed_copies, tool_process
from cyborg.drivers.nvme import admin_commands

P = ParamSpec("P")
T = TypeVar("T")


helper_channel.use()


def _context(name: str, section: str, *needed: int) -> priv_context.PrivContext:
    """The helper that is named so in this module, with the options of a section."""
    return priv_context.PrivContext(
        "cyborg", cfg_section=section, pypath=f"{__name__}.{name}", capabilities=list(needed)
    )


#: DAC_OVERRIDE lets the helper run as another user than root.
context = _context("context", "cyborg_sys_admin", capabilities.CAP_DAC_OVERRIDE)

#: A helper of its own: commands to a disk need more than writing to sysfs.
erasing = _context(
    "erasing", "cyborg_nvme", capabilities.CAP_DAC_OVERRIDE, capabilities.CAP_SYS_ADMIN
)

#: A helper of its own, which must be root: a vendor's tool that is started by another user has no
#: capability, even if the helper has. The tools get the helper's capabilities and no others: they
#: open device files and files in sysfs, and XRT's insists on root.
programming = _context("programming", "cyborg_program", capabilities.CAP_DAC_OVERRIDE)

#: The helper that looks at other processes and changes nothing.
watching = _context(
    "watching", "cyborg_watch", capabilities.CAP_DAC_READ_SEARCH, capabilities.CAP_SYS_PTRACE
)

_FPGACONF = "/usr/bin/fpgaconf"
_DFL_REGION = [sys.executable, "-I", "-m", "cyborg.drivers.intel.dfl_region"]
_XBMGMT = "/opt/xilinx/xrt/bin/xbmgmt"
_NVIDIA_SMI = "/usr/bin/nvidia-smi"
_NVIDIA_CTK = "/usr/bin/nvidia-ctk"
#: Where packages of Xilinx's platforms install partitions, each in a folder named for its id.
XILINX_PARTITIONS = pathlib.Path("/lib/firmware/xilinx")

_DEV = pathlib.Path("/dev")
_PCI = pathlib.Path("/sys/bus/pci")
_MDEV_PARENTS = pathlib.Path("/sys/class/mdev_bus")
_MDEVS = pathlib.Path("/sys/bus/mdev/devices")
_IDXD_DRIVERS = pathlib.Path("/sys/bus/dsa/drivers")

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NAMESPACE = re.compile(r"nvme\d+(c\d+)?n\d+", re.ASCII)
_SERVICES = re.compile(r"[a-z]{2,9}(;[a-z]{2,9}){0,3}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_IDXD = re.compile(r"(dsa|iax)([0-9]{1,5})", re.ASCII)
_PARTITION = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MIG_PROFILE = re.compile(r"[1-7]g\.[0-9]{1,4}gb(\+me|\+gfx)?", re.ASCII)
#: NVIDIA's names of GPUs and of MIG instances.
_GPU = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
#: What NVIDIA's tool says, as a failure, if there is nothing to destroy.
_NO_INSTANCES = re.compile(r"No (GPU|compute) instances found")
_FME = re.compile(r"dfl-fme\.[0-9]{1,9}", re.ASCII)
#: Drivers, mdev types and parents of mediated devices: no slash, no leading dot.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}", re.ASCII)


def act_alone() -> None:
    """Work without a helper if this process is root, unless the operator has named one."""
    for each in (context, erasing, programming, watching):
        if os.geteuid() == 0 and not each.conf.helper_command:
            each.set_client_mode(False)


def _privileged(function: Callable[P, T]) -> Callable[P, T]:
    return cast("Callable[P, T]", context.entrypoint(function))


@watching.entrypoint
def node_holders(nodes: list[str], likely: list[int]) -> dict[str, tuple[int, str]]:
    """The process that has each of these device nodes open: its number and name."""
    return open_nodes.holders(nodes, likely)


@watching.entrypoint
def guests(instances: list[str]) -> dict[str, list[str]]:
    """The files of vfio that the processes of these guests have open."""
    return open_nodes.guests(instances)


@watching.entrypoint
def containers(handle: str) -> list[str]:
    """The processes of containers that were given the nodes of an attach handle."""
    return open_nodes.containers(_checked(_UUID, handle))


@_privileged
def create_mdev(parent: str, mdev_type: str, uuid: str) -> None:
    """Create a mediated device, unless it exists with this type and parent.

    :raises OSError: EEXIST if another device has the uuid, else the kernel's error
    """
    types = _MDEV_PARENTS / _checked(_NAME, parent) / "mdev_supported_types"
    try:
        _write(types / _checked(_NAME, mdev_type) / "create", _checked(_UUID, uuid))
    except FileExistsError:
        if _mdev(uuid) != (parent, mdev_type):
            raise


@_privileged
def remove_mdev(uuid: str) -> None:
    """Remove a mediated device, if it exists.

    :raises OSError: the kernel's error, EBUSY if it is in use
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

    :raises OSError: EBUSY if a guest uses its present type, ENOENT if its driver does not show it,
        else the kernel's error
    """
    function = _function(address)
    path = function / "nvidia/current_vgpu_type"
    if number == "0" and not function.exists():
        return  # the function is gone, and the type with it
    if path.read_text().strip() != _checked(_NUMBER, number):
        _write(path, number)


@_privileged
def set_qat_services(address: str, services: str) -> None:
    """Have a QAT endpoint offer these services, such as ``asym;sym``; it is down meanwhile.

    Kernels before 6.4 know a set of services in one order only.

    :raises OSError: EBUSY if it has virtual functions, which the kernel would remove from guests,
        EINVAL if it cannot offer these services, else the kernel's error
    """
    path = _function(address)
    if int((path / "sriov_numvfs").read_text()):
        raise OSError(errno.EBUSY, f"{address} has virtual functions")
    orders = itertools.permutations(_checked(_SERVICES, services).split(";"))
    _write(path / "qat/state", "down")
    try:
        _write_one_of(path / "qat/cfg_services", [";".join(order) for order in orders])
    finally:
        _write(path / "qat/state", "up")


@_privileged
def set_gpu_partition(address: str, kind: str, mode: str) -> None:
    """Give an AMD GPU another ``compute`` or ``memory`` partition, such as ``CPX`` or ``NPS4``.

    :raises OSError: EBUSY if a process has it open, EINVAL if it cannot have that, else the
        kernel's error
    """
    path = _function(address) / f"current_{_checked(_NAME, kind)}_partition"
    if _text(path) != mode:
        _write(path, _checked(_NAME, mode))


@_privileged
def set_idxd_queues(address: str, count: int, mode: str) -> None:
    """Give a DSA or IAA function so many queues for user space, and no others.

    They have equal parts of its entries, and of its engines as far as it has groups for them.

    :raises OSError: EAGAIN if a queue is in use, or is the kernel's, else the kernel's error
    """
    (device,) = [each for each in _function(address).iterdir() if _IDXD.fullmatch(each.name)]
    queues = sorted(device.glob("wq*.*"), key=lambda each: int(each.suffix[1:]))
    for each in queues:
        kind, state, clients = (_text(each / name) for name in ("type", "state", "clients"))
        if state == "enabled" and (kind != "user" or clients != "0"):
            raise OSError(errno.EAGAIN, f"queue {each.name} of {address} is in use by the host")
    if _text(device / "state") == "enabled":
        _write(_IDXD_DRIVERS / "idxd/unbind", device.name)
    _configure_queues(device, queues, count, _checked(_NAME, mode))
    for driver, each in (("idxd", device), *(("user", each) for each in queues[:count])):
        _write(_IDXD_DRIVERS / driver / "bind", each.name)


def _configure_queues(
    device: pathlib.Path, queues: Sequence[pathlib.Path], count: int, mode: str
) -> None:
    size = int(_text(device / "max_work_queues_size")) // count
    groups = min(count, int(_text(device / "max_groups")))
    for number, each in enumerate(sorted(device.glob("engine*.*"))):
        _write(each / "group_id", str(number % groups))
    for each in queues:
        _write(each / "size", "0")
        _write(each / "group_id", "-1")
    for number, each in enumerate(queues[:count]):
        values = {"group_id": number % groups, "mode": mode, "size": size, "priority": 10}
        values |= {"threshold": size} if mode == "shared" else {}
        values |= {"type": "user", "name": "cyborg"}
        # Kernels before 6.7 have no such file.
        values |= {"driver_name": "user"} if (each / "driver_name").exists() else {}
        for name, value in values.items():
            _write(each / name, str(value))


def _write_one_of(path: pathlib.Path, texts: Sequence[str]) -> None:
    """Write the first of several texts that the kernel takes.

    :raises OSError: EINVAL if it takes none of them, else the kernel's error
    """
    for text in texts[:-1]:
        try:
            _write(path, text)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
        else:
            return
    _write(path, texts[-1])


@_privileged
def reset_function(address: str) -> None:
    """Let the kernel reset a PCI function.

    :raises OSError: EBUSY if a guest has its IOMMU group open, else the kernel's error
    """
    path = _function(address)
    group = _link(path / "iommu_group")
    if group is not None and "vfio" in (_link(path / "driver") or ""):
        try:
            with _opened(_DEV / "vfio" / group, os.O_RDWR):
                pass
        except OSError as exc:
            if exc.errno == errno.EBUSY:
                raise OSError(errno.EBUSY, f"a guest has {address} open") from exc
    _write(path / "reset", "1")


@_privileged
def set_numvfs(address: str, count: int) -> None:
    """Give a physical function ``count`` virtual functions, after removing those it has.

    :raises OSError: EBUSY if one of those may be in use, ERANGE if the card cannot have so many
    """
    pf = _function(address)
    present = int((pf / "sriov_numvfs").read_text())
    if present == count:
        return
    if not 0 <= count <= int((pf / "sriov_totalvfs").read_text()):
        raise _error(errno.ERANGE, pf / "sriov_numvfs", str(count))
    for vf in sorted(pf.glob("virtfn*")):
        use = _use(vf)
        if use is not None:
            raise OSError(errno.EBUSY, f"{vf.readlink().name} may be in use: {use}")
    if present:
        # The kernel takes a new number only after 0.
        _write(pf / "sriov_numvfs", "0")
    if count:
        _write(pf / "sriov_numvfs", str(count))


@_privileged
def set_drivers_autoprobe(address: str, *, on: bool) -> None:
    """Set whether the host's drivers take new virtual functions of a physical function."""
    _write(_function(address) / "sriov_drivers_autoprobe", str(int(on)))


@_privileged
def bind_driver(address: str, driver: str) -> None:
    """Bind a PCI function to a driver, and let no other driver take it.

    :raises OSError: ENODEV if the driver is not loaded or does not take the function
    """
    path = _function(address)
    if not (_PCI / "drivers" / _checked(_NAME, driver)).is_dir():
        raise OSError(errno.ENODEV, f"driver {driver} is not loaded")
    _write(path / "driver_override", driver)
    if _link(path / "driver") == driver:
        return
    if (path / "driver").exists():
        _write(path / "driver" / "unbind", address)
    _write(_PCI / "drivers_probe", address)
    if _link(path / "driver") != driver:
        raise OSError(errno.ENODEV, f"driver {driver} does not take {address}")


@erasing.entrypoint
def nvme_sanitize_methods(address: str) -> list[int]:
    """The numbers of the methods by which a controller can erase itself."""
    with _opened(_controller(address)) as descriptor:
        return sorted(admin_commands.sanitize_methods(admin_commands.identify(descriptor)))


@erasing.entrypoint
def nvme_sanitize_state(address: str) -> int:
    """The number of the state of a controller's last erasure."""
    with _opened(_controller(address)) as descriptor:
        return int(admin_commands.state_of(admin_commands.sanitize_log(descriptor)))


@erasing.entrypoint
def nvme_sanitize(address: str, method: int) -> None:
    """Begin to erase a controller.

    :raises OSError: EBUSY if the host uses a namespace of it, else the kernel's error
    """
    with contextlib.ExitStack() as stack:
        for namespace in _namespaces(address):
            stack.enter_context(_opened(namespace, os.O_RDWR | os.O_EXCL))
        descriptor = stack.enter_context(_opened(_controller(address)))
        admin_commands.sanitize(descriptor, admin_commands.Sanitize(method))


@erasing.entrypoint
def nvme_zero(address: str) -> None:
    """Overwrite every namespace of a controller with zeroes, to the end.

    :raises OSError: EBUSY if the host uses one, ENXIO if not all are shown, as just after the
        controller came back to the host or if a guest has detached one, else the kernel's error
    """
    namespaces = _namespaces(address)
    if not namespaces:
        raise OSError(errno.ENXIO, f"NVMe controller {address} shows no namespace")
    with _opened(_controller(address)) as descriptor:
        hidden = (admin_commands.count_allocated(descriptor) or 0) - len(namespaces)
    if hidden > 0:
        sentence = f"it has {hidden} namespaces that are not attached to it"
        raise OSError(errno.ENXIO, f"NVMe controller {address} is not erased: {sentence}")
    for namespace in namespaces:
        with _opened(namespace, os.O_RDWR | os.O_EXCL) as descriptor:
            admin_commands.zero(descriptor)


@programming.entrypoint
def fpgaconf(
    address: str, bitstream: str, timeout: float, lock: str, until: float, signature: dict[str, str]
) -> None:
    """Load a bitstream into the one region of an Intel card with OPAE's tool.

    The tool holds the card's lock, the file ``lock``, as long as it runs. It is not started after
    ``until``, by the clock of :mod:`cyborg.drivers.permit_clock`. ``signature`` has the properties
    of the image that sign the bitstream, if it is signed.

    :raises OSError: EKEYREJECTED if it is not signed as it must be, ENOKEY if that cannot be
        verified now, else as :func:`cyborg.drivers.tool_process.run`
    """
    domain, bus, place = _checked(_ADDRESS, address).split(":")
    device, number = place.split(".")
    command = [_FPGACONF, "--segment", f"0x{domain}", "--bus", f"0x{bus}"]
    command += ["--device", f"0x{device}", "--function", f"0x{number}"]
    _run_tool(command, bitstream, timeout, lock, until, signature)


@programming.entrypoint
def dfl_region(
    place: str,
    _address: str,
    bitstream: str,
    timeout: float,
    lock: str,
    until: float,
    signature: dict[str, str],
) -> None:
    """Load a bitstream into one of several regions of an Intel card, by the kernel's driver.

    ``place`` is the name of the card's device file, a slash and the number of the region's port.

    :raises OSError: as :func:`fpgaconf`
    """
    name, _, port = place.partition("/")
    node = _DEV / _checked(_FME, name)
    if not node.exists():
        raise OSError(errno.ENOENT, f"There is no {node}")
    command = [*_DFL_REGION, str(node), _checked(_NUMBER, port)]
    _run_tool(command, bitstream, timeout, lock, until, signature)


@programming.entrypoint
def xbmgmt(
    address: str, bitstream: str, timeout: float, lock: str, until: float, signature: dict[str, str]
) -> None:
    """Load a bitstream into a Xilinx card with XRT's tool. ``address`` is its managing function.

    :raises OSError: as :func:`fpgaconf`
    """
    place = _checked(_ADDRESS, address)
    command = [_XBMGMT, "--force", "program", "--device", place, "--user"]
    _run_tool(command, bitstream, timeout, lock, until, signature)


@programming.entrypoint
def set_xilinx_shell(
    address: str, partition: str, timeout: float, lock: str, until: float
) -> None:
    """Load an installed partition as the shell of a Xilinx card, with XRT's tool.

    ``partition`` is its id: the agent's user must not choose the file.

    :raises OSError: as :func:`cyborg.drivers.tool_process.run`
    """
    file = XILINX_PARTITIONS / _checked(_PARTITION, partition) / "partition.xsabin"
    command = [_XBMGMT, "--force", "program", "--device", _checked(_ADDRESS, address)]
    _run([*command, "--shell", _file(str(file))], timeout, lock, until)


@programming.entrypoint
def set_gpu_instances(
    address: str, profiles: list[str], timeout: float, lock: str, until: float, *, beside: bool
) -> None:
    """Make GPU instances of these profiles of an NVIDIA card in MIG mode.

    Unless they are to be ``beside`` those that it has, these are destroyed. ``timeout`` is for each
    of up to three runs of NVIDIA's tool.

    :raises OSError: as :func:`cyborg.drivers.tool_process.run`
    """
    place = ["-i", _checked(_ADDRESS, address)]
    wanted = ",".join(_checked(_MIG_PROFILE, each) for each in profiles)
    for arguments in (*(() if beside else (["-dci"], ["-dgi"])), ["-cgi", wanted, "-C"]):
        try:
            _run([_NVIDIA_SMI, "mig", *arguments, *place], timeout, lock, until)
        except OSError as exc:
            if exc.errno != errno.EIO or not _NO_INSTANCES.search(str(exc)):
                raise
        until = math.inf  # the rest is part of what has begun


@programming.entrypoint
def compute_instances(address: str, timeout: float, lock: str) -> str:
    """The answer of NVIDIA's tool on the compute instances (MIG) of a card, of which it has some.

    :raises OSError: as :func:`cyborg.drivers.tool_process.run`
    """
    command = [_NVIDIA_SMI, "mig", "-lci", "-i", _checked(_ADDRESS, address)]
    return _run(command, timeout, lock, math.inf).decode(errors="replace")


@programming.entrypoint
def gpu_topology(timeout: float, lock: str) -> list[str]:
    """The answers of NVIDIA's tool on the links of all GPUs, and on their addresses.

    ``timeout`` is for each of two runs of the tool.

    :raises OSError: as :func:`cyborg.drivers.tool_process.run`
    """
    questions = (["topo", "-m"], ["--query-gpu=index,pci.bus_id", "--format=csv,noheader"])
    said = (_run([_NVIDIA_SMI, *each], timeout, lock, math.inf) for each in questions)
    return [output.decode(errors="replace") for output in said]


@programming.entrypoint
def nvidia_cdi(name: str, timeout: float, lock: str) -> str:
    """A CDI specification of NVIDIA's tool: of all GPUs, or of the named one if it can.

    ``timeout`` is for each of two runs of the tool.

    :raises OSError: as :func:`cyborg.drivers.tool_process.run`
    """
    command = [_NVIDIA_CTK, "cdi", "generate"]
    known = _run([*command, "--help"], timeout, lock, math.inf)
    # It came in 2026. The driver shows question marks for a GPU that nothing has used yet.
    if b"--device-id" in known and _GPU.fullmatch(name):
        command.append(f"--device-id={name}")
    return _run(command, timeout, lock, math.inf).decode(errors="replace")


def _run(command: list[str], timeout: float, lock: str, until: float) -> bytes:
    """The output of a tool, which gets the capabilities of this helper.

    :raises OSError: as :func:`cyborg.drivers.tool_process.run`
    """
    allowed = programming.conf.capabilities
    return tool_process.run(command, timeout, _file(lock), until, allowed)


def _run_tool(
    command: list[str],
    bitstream: str,
    timeout: float,
    lock: str,
    until: float,
    signature: Mapping[str, str],
) -> None:
    """Run a tool whose last argument is the file that it writes."""
    with signed_copies.signed(_file(bitstream), signature) as file:
        _run([*command, file], timeout, lock, until)


def _file(path: str) -> str:
    """The path of a file, absolute so that no tool takes it for an option."""
    if not (pathlib.Path(path).is_absolute() and pathlib.Path(path).is_file()):
        raise OSError(errno.ENOENT, f"{path!r} is not the full path of a file")
    return path


def _controller(address: str) -> pathlib.Path:
    names = sorted((_function(address) / "nvme").iterdir())
    return pathlib.Path("/dev", names[0].name)


def _namespaces(address: str) -> list[pathlib.Path]:
    path = _function(address) / "nvme"
    names = {
        # With several paths to a namespace, the block device is named without the path.
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


def _function(address: str) -> pathlib.Path:
    return _PCI / "devices" / _checked(_ADDRESS, address)


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} cannot be part of a path in sysfs")
    return text


def _text(path: pathlib.Path) -> str:
    return path.read_text().strip()


def _write(path: pathlib.Path, text: str) -> None:
    """Write in one system call, so that an error is the kernel's answer to it."""
    try:
        with _opened(path, os.O_WRONLY) as descriptor:
            os.write(descriptor, text.encode())
    except OSError as exc:
        raise _error(exc.errno, path, text) from exc


def _error(number: int | None, path: pathlib.Path, text: str) -> OSError:
    # Only the arguments of an error cross from the helper, not its file name.
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


def _use(vf: pathlib.Path) -> str | None:
    """The use that a virtual function may have, or None if it certainly has none."""
    if any(_UUID.fullmatch(child.name) for child in vf.iterdir()):
        return "it has a mediated device"
    driver = _link(vf / "driver")
    if driver is None:
        return None
    if "vfio" not in driver:
        return f"driver {driver} of the host has it"
    group = _link(vf / "iommu_group")
    return None if group is not None and _opens(_DEV / "vfio" / group) else "a guest has it"


def _opens(path: pathlib.Path) -> bool:
    """True if an IOMMU group is free: only one process can have it open."""
    try:
        with _opened(path, os.O_RDWR):
            return True
    except OSError:
        return False
