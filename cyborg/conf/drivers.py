# SPDX-License-Identifier: Apache-2.0
"""Option groups of the drivers, so that every service accepts the whole file.

They are not in the drivers' modules because the API, which imports no driver, registers all options
too. A driver that is installed from elsewhere registers its own options when it is created.
"""

from __future__ import annotations

from oslo_config import cfg, types

from cyborg.common import program_modes
from cyborg.conf.nvme import NVME_OPTS, NVMF_SPDK_OPTS, NVMF_TARGET_OPTS

FAKE_OPTS: list[cfg.Opt] = [
    cfg.IntOpt("devices", default=1, min=0, help="How many devices the fake driver shows."),
    cfg.IntOpt(
        "handles_per_device",
        default=16,
        min=0,
        max=256,
        help="How many attach handles each fake device has. Each of its regions has an equal part.",
    ),
    cfg.IntOpt(
        "regions",
        default=1,
        min=1,
        max=16,
        help="How many deployables each fake device has. If there are several, they are parts "
        "of one more deployable, which has no attach handles.",
    ),
    cfg.StrOpt(
        "program_mode",
        choices=[
            (program_modes.DYNAMIC, "each deployable is a region, offered with any program"),
            (program_modes.SINGLE_PROGRAM, "a deployable is offered only while it has a program"),
        ],
        help="Let fake deployables be programmed. A bitstream of theirs begins with a JSON object "
        'that names its function: {"function": "aes-128"}.',
    ),
    cfg.StrOpt(
        "state_dir",
        help="Directory in which the programs of fake deployables survive the agent, as in an "
        "FPGA. Unset, nothing is loaded when the agent starts.",
    ),
    cfg.BoolOpt(
        "host_step",
        default=False,
        help="Let each fake handle be prepared before use and cleaned afterwards on the host.",
    ),
    cfg.StrOpt(
        "host_step_control",
        help="File that is read at each step: a JSON object with the keys discover, prepare, clean "
        'and program, each {"seconds": N, "fail": "sentence", "hang": true}. It makes a step slow, '
        "fail or hang on demand. A step that hangs goes on when the file no longer says so. "
        "Programming waits and hangs while nothing is loaded, and fails there; with "
        '"fail_at": "start" it fails before it has changed anything, with "fail_at": "end" when '
        'the function is loaded. The key unhealthy makes devices unhealthy: {"0": "sentence"}.',
    ),
]

PCI_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        deprecated_name="passthrough_whitelist",
        help="The PCI devices that pci_driver reports: a JSON object, or a list of them, in the "
        "grammar of Nova's [pci] device_spec. Keys that match are vendor_id, product_id, devname "
        "and address, a string with globs or an object with a regular expression a field. The "
        "tags resource_class, traits, type (a device type of the API, default PCI) and product (a "
        "name for people) say what a match is. Devices with the same tag board are one device, "
        "given out as a whole. The tag exclude = true leaves a device to the host. The first "
        "object that matches a device counts. May be given several times.",
    ),
]


_SHARES = (
    " With shares, a number from 2 to 64, containers share a card: it is so many CUSTOM_GPU_SHARE, "
    "and no guest gets it. They are of one project at a time unless mix_projects is true."
)


def device_spec(devices: str, more: str = "") -> cfg.MultiStrOpt:
    """The option that limits what a driver of PCI devices takes; each driver's group has one."""
    return cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help=f"Which {devices} the driver reports, in the grammar of [pci] device_spec: the tags "
        "resource_class and traits change what a device is reported with, exclude keeps it with "
        f"the host. Without an object that includes devices, all others are reported.{more}",
    )


AMD_GPU_OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        "ras_uncorrectable_errors",
        default=1,
        min=0,
        help="How many uncorrectable errors, as counted by the driver amdgpu for the blocks of "
        "a GPU (such as ras/umc_err_count) since it was loaded, make it unhealthy. 0: no number "
        "does.",
    ),
    cfg.BoolOpt(
        "heal_by_word",
        default=False,
        help="Reset the error count of a device when an administrator of the host writes "
        "'cyborg: <slot> is healthy' to /dev/kmsg. The agent needs CAP_SYSLOG to read "
        "that.",
    ),
    cfg.ListOpt(
        "layouts",
        default=[],
        help="Partitions for containers into which administrators and function pools may divide "
        "AMD GPUs that can have them (MI300 and later): compute and memory partition, such as "
        "SPX-NPS1, CPX-NPS1, CPX-NPS4. Such a GPU is given out by its partitions alone, unless it "
        "is bound to vfio-pci.",
    ),
    device_spec("AMD GPUs", _SHARES),
]

GPU_OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "enabled_vgpu_types",
        default=[],
        help="Types of virtual GPU that NVIDIA cards are split into, such as nvidia-474, or its "
        "number for a card whose virtual functions take types. A single type is for every card; "
        "of several, each needs a section [vgpu_<type>] with device_addresses.",
    ),
    cfg.ListOpt(
        "layouts",
        default=[],
        help="Layouts into which administrators and function pools may divide NVIDIA cards with "
        "vGPU types of virtual functions or with mediated devices. A layout is the name of a type "
        "without the vendor, such as L40S-12Q. For virtual functions it may be a MIG profile, such "
        "as 1g.12gb, which means the compute type of that slice. A card is one "
        "deployable then, and is not offered without virtual functions. Names with numbers, such "
        "as 7x1g.10gb or 1x3g.40gb_4x1g.10gb, are MIG instances for containers, of cards without "
        "virtual functions. Change it only while no "
        "guest has any part of such a card. Cards for which enabled_vgpu_types has a type keep it.",
    ),
    cfg.StrOpt(
        "mps_dir",
        help="CUDA_MPS_PIPE_DIRECTORY of the daemon of NVIDIA's Multi-Process Service (MPS), whose "
        "own default is nvidia-mps in /tmp. While the daemon runs, containers with shares of a GPU "
        "with mix_projects get this folder too. Others have the GPU by turns.",
    ),
    cfg.BoolOpt(
        "filter_sriov_vfs",
        default=False,
        help="Has no effect, and is accepted for old configuration files only. A virtual function "
        "is never reported as a whole GPU.",
    ),
    cfg.BoolOpt(
        "read_topology",
        default=False,
        help="Ask nvidia-smi once after each start of the host which GPUs NVLink connects, beside "
        "discovery: requests of several GPUs and function pools then prefer those. It opens all "
        "GPUs of NVIDIA's driver for some seconds. Meanwhile no guest can get one.",
    ),
    cfg.BoolOpt(
        "read_sensors",
        default=False,
        help="Read temperature, power, memory in use and ECC errors of the GPUs that stay with the "
        "host, such as those with virtual GPUs, with NVML, for the agent's metrics, [agent] "
        "report_readings and ecc_uncorrectable_errors. The host needs the Python package "
        "nvidia-ml-py. GPUs that are given out whole are never opened.",
    ),
    cfg.IntOpt(
        "ecc_uncorrectable_errors",
        default=0,
        min=0,
        help="With read_sensors: how many uncorrectable ECC errors since NVIDIA's driver was "
        "loaded make a GPU unhealthy. 0: no number does.",
    ),
    cfg.ListOpt(
        "unhealthy_xids",
        item_type=types.Integer(min=1, max=9999),
        default=[],
        help="Numbers of faults (Xids) in the kernel's log that make a GPU unhealthy, such as 48 "
        "(an ECC error of two bits), 74 (NVLink), 79 (fallen off the bus) or 95 (an ECC error that "
        "was not contained). Empty: the log is not read. The agent needs CAP_SYSLOG to read it.",
    ),
    cfg.IntOpt(
        "xid_recovery",
        default=0,
        min=0,
        help="Seconds after the last of these faults when a GPU counts as healthy again. 0: it "
        "stays unhealthy until an administrator of the host writes 'cyborg: <slot> is healthy' to "
        "/dev/kmsg, or the host is rebooted.",
    ),
    device_spec("NVIDIA GPUs", _SHARES),
]

#: Of each group ``vgpu_<type>``, registered for the types that are enabled.
VGPU_TYPE_OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "device_addresses",
        default=[],
        help="PCI addresses of the functions that are split into this type. Give a card to "
        "include its virtual functions, or give single virtual functions.",
    ),
    cfg.IntOpt(
        "max_instances",
        min=1,
        help="How many virtual GPUs of this type one card with virtual functions offers. Unset, as "
        "many as the card shows, or else as many as fit in its memory.",
    ),
]

NIC_OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "enabled_nic_types",
        default=[],
        help="Names of sections, such as x710_static. Each section has the physical networks and "
        "the functions of some network cards.",
    ),
    device_spec("Intel network cards"),
]

QAT_LAYOUTS = cfg.ListOpt(
    "layouts",
    default=[],
    help="Sets of services that administrators and function pools may give to QAT endpoints, such "
    "as asym-sym, dc: an endpoint is one deployable then, with all its virtual functions. Change "
    "it only while no guest has any of them. Unset, each virtual function is a deployable, and "
    "the services stay what the host's administrator has set.",
)

DSA_LAYOUTS = cfg.ListOpt(
    "layouts",
    default=[],
    help="Queues for containers that administrators may make on DSA and IAA functions, such as "
    "4-dedicated, 8-shared: a number of equal queues, each for one process or for several. "
    "Functions of the driver idxd are then not given out whole.",
)

XILINX_LAYOUTS = cfg.ListOpt(
    "layouts",
    default=[],
    help="Shells that administrators and function pools may give to Xilinx cards with two stages "
    "(DFX-2RP), such as xilinx_u250_gen3x16_xdma_shell_4_1, by the names that xbmgmt examine "
    "shows. A card of the board of one of them is not programmed with images. Change it only while "
    "no guest has such a card.",
)

#: Of each section that ``[nic_devices] enabled_nic_types`` names.
NIC_TYPE_OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "physical_device_mappings",
        default=[],
        help="Physical networks with the interfaces connected to each: "
        "physnet1:ens1f0|ens2f0,physnet2:ens1f1.",
    ),
    cfg.ListOpt(
        "function_device_mappings",
        default=[],
        help="Functions for which network cards were prepared, each with the interfaces of "
        "these cards: GTPv1:ens1f0|ens2f0.",
    ),
    cfg.ListOpt(
        "device_addresses",
        default=[],
        help="PCI addresses of the cards that are reported. If no enabled section names any, "
        "all cards are reported.",
    ),
]

NIC_DRIVER_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help="Which network ports with SR-IOV nic_driver reports, in the grammar of [pci] "
        "device_spec with three more keys, as in Nova's: physical_network, the name of the network "
        "that the port is connected to; trusted and remote_managed, true or false. Unset, none is "
        "reported. May be given several times.",
    ),
]

MDEV_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "mdev_spec",
        default=[],
        help="Which mediated devices mdev_driver offers: a JSON object, or a list of them, with "
        "the keys parent (a glob over names in /sys/class/mdev_bus), mdev_type (a glob over "
        "types), and the tags resource_class, traits and type. The first that matches a parent "
        "counts. May be given several times.",
    ),
]

HEALTH_OPTS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "logged_faults",
        default=True,
        help="Report a card as unhealthy if the kernel's log has a fault of the card. "
        "Faults are: it has fallen off the bus, its driver could not take or initialize it, a "
        "switch of an HGX board had a fatal error (SXid), or PCIe errors were fatal. An agent "
        "without CAP_SYSLOG reads nothing.",
    ),
    cfg.BoolOpt(
        "driver_unbound",
        default=True,
        help="Report a card as unhealthy if it lacks the driver of the host that it needs "
        "because guests get only parts of the card.",
    ),
    cfg.BoolOpt(
        "link_width",
        default=True,
        help="Whether a card is unhealthy if its PCIe link has fewer lanes than card and slot "
        "have.",
    ),
    cfg.BoolOpt(
        "link_speed",
        default=False,
        help="Whether a card is unhealthy if its PCIe link is slower than card and slot can do. "
        "Many cards slow their link down on purpose while they are idle.",
    ),
    cfg.IntOpt(
        "aer_fatal_errors",
        default=1,
        min=0,
        help="How many fatal errors, as counted by PCIe advanced error reporting since the host "
        "started, make a device unhealthy. 0: no number does.",
    ),
    cfg.IntOpt(
        "aer_nonfatal_errors",
        default=100,
        min=0,
        help="How many uncorrectable errors that were not fatal make a device unhealthy. 0: no "
        "number does.",
    ),
]

#: Every option group of drivers.
GROUPS: dict[str | None, list[cfg.Opt]] = {
    "accel_driver": [device_spec("processing accelerators")],
    "amd_gpu_driver": AMD_GPU_OPTS,
    "fake_driver": FAKE_OPTS,
    "gpu_devices": GPU_OPTS,
    "habana_driver": [device_spec("Gaudi processors")],
    "huawei_ascend_driver": [device_spec("Ascend processors")],
    "inspur_fpga_driver": [device_spec("Inspur FPGAs")],
    "inspur_nvme_ssd_driver": [device_spec("Inspur NVMe devices")],
    "intel_dsa_driver": [device_spec("DSA and IAA functions"), DSA_LAYOUTS],
    "intel_fpga_driver": [device_spec("Intel FPGAs")],
    "intel_gpu_driver": [device_spec("Intel GPUs")],
    "intel_qat_driver": [device_spec("QAT devices"), QAT_LAYOUTS],
    "mdev": MDEV_OPTS,
    "nic_devices": NIC_OPTS,
    "nic_driver": NIC_DRIVER_OPTS,
    "nvme": NVME_OPTS,
    "nvmf_spdk": NVMF_SPDK_OPTS,
    "pci": PCI_OPTS,
    "pci_health": HEALTH_OPTS,
    "xilinx_fpga_driver": [device_spec("Xilinx FPGAs"), XILINX_LAYOUTS],
}


def register_vgpu_type(conf: cfg.ConfigOpts, name: str) -> cfg.ConfigOpts.GroupAttr:
    """The options of the section ``[vgpu_<type>]``."""
    return _section(conf, f"vgpu_{name}", VGPU_TYPE_OPTS)


def register_nic_type(conf: cfg.ConfigOpts, name: str) -> cfg.ConfigOpts.GroupAttr:
    """The options of a section that ``[nic_devices] enabled_nic_types`` names."""
    return _section(conf, name, NIC_TYPE_OPTS)


def register_nvmf_target(conf: cfg.ConfigOpts, name: str) -> cfg.ConfigOpts.GroupAttr:
    """The options of the section ``[nvmf_spdk_<target>]``."""
    return _section(conf, f"nvmf_spdk_{name}", NVMF_TARGET_OPTS)


def _section(conf: cfg.ConfigOpts, name: str, opts: list[cfg.Opt]) -> cfg.ConfigOpts.GroupAttr:
    conf.register_opts(opts, group=name)
    section: cfg.ConfigOpts.GroupAttr = conf[name]
    return section
