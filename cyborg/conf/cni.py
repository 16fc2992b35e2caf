# SPDX-License-Identifier: Apache-2.0
"""Options of cyborg-cni, besides keystoneauth's for the accelerator API."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "state_dir",
        default="/var/lib/cyborg/cni",
        help="Folder with a file for each interface that a container has. It must outlast a crash "
        "of the host: an interface without its file cannot be taken back.",
    ),
    cfg.IntOpt(
        "command_timeout",
        default=60,
        min=1,
        help="Seconds for which a command waits for Cyborg, until the accelerator is ready too. "
        "The container runtime must wait longer.",
    ),
]
