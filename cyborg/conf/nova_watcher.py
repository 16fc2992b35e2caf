# SPDX-License-Identifier: Apache-2.0
"""Options of cyborg-nova-watcher, besides keystoneauth's for the accelerator API."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="The message broker to which Nova sends its notifications. The default is [DEFAULT] "
        "transport_url.",
    ),
    cfg.StrOpt(
        "topic",
        default="versioned_notifications",
        help="The topic of Nova's versioned notifications: [notifications] "
        "versioned_notifications_topics in nova.conf.",
    ),
    cfg.StrOpt(
        "exchange",
        default="nova",
        help="The exchange of Nova's notifications: [DEFAULT] control_exchange in nova.conf.",
    ),
    cfg.StrOpt(
        "pool",
        default="cyborg",
        help="The name of the queue from which all watchers read. Other listeners of the topic "
        "get every notification as well.",
    ),
]
