# SPDX-License-Identifier: Apache-2.0
"""Options for finding and fetching bitstreams in Glance."""

from oslo_config import cfg

#: The group has keystoneauth's options too.
OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        "num_retries",
        default=0,
        min=0,
        help="How often a request is repeated if Glance cannot be reached or answers 503, and how "
        "often a bitstream is fetched again if it did not arrive completely.",
    ),
]
