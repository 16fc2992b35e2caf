# SPDX-License-Identifier: Apache-2.0
"""Options for writing resource providers to Placement."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "create_root_provider",
        default=False,
        help="Create a host's root resource provider if Placement has none of that name. Leave it "
        "off with Nova: nova-compute creates the provider, and Cyborg waits for it.",
    ),
]
