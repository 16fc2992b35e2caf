# SPDX-License-Identifier: Apache-2.0
"""Options for writing resource providers to Placement."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "create_root_provider",
        default=False,
        help="Make a host's root resource provider where Placement has none of that name. With "
        "Nova leave this off: nova-compute makes it, and Cyborg waits for it.",
    ),
]
