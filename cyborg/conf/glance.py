# SPDX-License-Identifier: Apache-2.0
"""Options for finding and fetching bitstreams in Glance."""

from oslo_config import cfg

#: The keystoneauth options of the group are registered beside these.
OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        "num_retries",
        default=0,
        min=0,
        help="How often a request that Glance could not be reached for, or that it answered with "
        "503, is made again. So often, too, a bitstream is fetched again that did not arrive "
        "whole.",
    ),
]
