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
    cfg.IntOpt(
        "provider_deletion_delay",
        default=3600,
        min=0,
        help="Seconds for which the resource provider of a device that is gone is kept in "
        "Placement, empty and outside the tree of its host. Keep it above the "
        "resource_provider_association_refresh of Nova: until nova-compute has read the tree "
        "again, it builds no server on a host of which a provider was deleted.",
    ),
]
