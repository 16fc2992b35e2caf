# SPDX-License-Identifier: Apache-2.0
"""Options of the DEFAULT group."""

import socket

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.HostAddressOpt(
        "host",
        default=socket.gethostname(),
        sample_default="localhost",
        help="Name of this host. It names the agent's message queue and prefixes the names of the "
        "devices, so it must be unique among hosts and stay the same. With Nova it should equal "
        "Nova's own [DEFAULT] host on the same machine.",
    ),
    cfg.IntOpt(
        "bind_timeout",
        default=60,
        min=1,
        mutable=True,
        help="Seconds for which an accelerator-request-bound event is offered again to Nova while "
        "Nova answers 422, which it does as long as the instance has no host. After that the "
        "event is dropped; Nova asks for the result by itself.",
    ),
    cfg.IntOpt(
        "thread_pool_size",
        default=10,
        min=1,
        help="How many pieces of work of each kind (binds, Nova events, Placement, host steps) a "
        "conductor handles at the same time.",
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/cyborg",
        help="Directory for the files a service keeps.",
    ),
]
