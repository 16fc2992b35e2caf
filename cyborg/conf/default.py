# SPDX-License-Identifier: Apache-2.0
"""Options of the DEFAULT group."""

import socket

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.HostAddressOpt(
        "host",
        default=socket.gethostname(),
        sample_default="localhost",
        help="Name of this host. The agent's message queue and the names of the devices contain "
        "it, so it must be unique and must not change. With Nova it should equal Nova's "
        "[DEFAULT] host on the same machine.",
    ),
    cfg.StrOpt(
        "rpc_exchange",
        default="cyborg",
        choices=[
            ("cyborg", "every user of it may delete it, and then no message arrives"),
            ("amq.topic", "nobody can delete it; for agents with RabbitMQ users of their own"),
        ],
        help="Exchange of RabbitMQ through which the services send each other messages. Give all "
        "services the same value.",
    ),
    cfg.IntOpt(
        "bind_timeout",
        default=60,
        min=1,
        mutable=True,
        help="Seconds for which an accelerator-request-bound event is sent again while Nova "
        "answers 422, as it does until the instance has a host. After that the event is dropped; "
        "Nova then asks for the result itself.",
    ),
    cfg.IntOpt(
        "thread_pool_size",
        default=10,
        min=1,
        help="Pieces of work of each kind (binds, Nova events, Placement, host steps) that a "
        "conductor handles at the same time.",
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/cyborg",
        help="Directory for the files of the services.",
    ),
]
