# SPDX-License-Identifier: Apache-2.0
"""Option groups of the drivers of NVMe devices, local and remote."""

from __future__ import annotations

from oslo_config import cfg

NVME_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help="Which NVMe devices nvme_driver reports, in the grammar of [pci] device_spec with "
        "three more keys. Two say how a device is erased after use: clear_action (auto, sanitize, "
        "zero, or none for not at all) and clear_strategy (auto, crypto or block). By default it "
        "erases itself, by its encryption key if it can; if it cannot, zeroes are written. With "
        "functions (whole or virtual) as virtual, each virtual function of a controller is given "
        "out by itself; zeroes are written to its namespaces. Unset, no device is reported. May "
        "be given several times.",
    ),
    cfg.IntOpt(
        "cleanup_timeout",
        default=900,
        min=60,
        help="Seconds that an NVMe device may take to erase itself.",
    ),
]

NVMF_TARGET_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "rpc_address",
        default="/var/tmp/spdk.sock",  # noqa: S108 - SPDK's own default
        help="Where the SPDK target takes JSON-RPC: the path of its socket, or host:port. Each "
        "client may do everything, so over a network only this host should be able to reach the "
        "port.",
    ),
    cfg.StrOpt(
        "target_name",
        help="The name of the target, if the SPDK application has several.",
    ),
    cfg.StrOpt(
        "key_dir",
        help="A folder for DH-HMAC-CHAP keys, such as /var/lib/cyborg/nvmf-keys. If it is set, the "
        "agent makes a key for each consumer, and the target lets nobody connect without it. The "
        "target reads the agent's files: both must run on one machine and as one user. The target "
        "must have the keyring of SPDK 24.09 or later.",
    ),
    cfg.ListOpt(
        "subsystems",
        default=["*"],
        help="Globs for the NQNs of the subsystems that this host reports. If several hosts reach "
        "one target, configure each subsystem on one host only: otherwise all of them offer it "
        "until one has it, and then it is unhealthy on the others.",
    ),
    cfg.FloatOpt(
        "timeout",
        default=10.0,
        min=0.1,
        help="Seconds within which the target must answer a call.",
    ),
    cfg.BoolOpt(
        "reuse_without_erasing",
        default=False,
        help="SPDK cannot erase a namespace. If this is false, a subsystem that was used stays "
        "reserved until its namespace is replaced by one with another UUID, for instance by "
        "deleting and creating the logical volume. If it is true, the next user can read what the "
        "last one wrote.",
    ),
]

NVMF_SPDK_OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "targets",
        default=[],
        help="Names of targets, if this host offers the subsystems of several. Each has a "
        "section [nvmf_spdk_<name>] with the options of a target, and those of [nvmf_spdk] "
        "are not read then, except host_nqn. Unset, the one target is that of [nvmf_spdk]. "
        "A target's name is part of the identity of its devices: do not rename a target "
        "while it has guests.",
    ),
    cfg.StrOpt(
        "host_nqn",
        help="The NQN under which this host connects to subsystems, for consumers that do not say "
        "their own. Unset, that of /etc/nvme/hostnqn.",
    ),
    *NVMF_TARGET_OPTS,
]
