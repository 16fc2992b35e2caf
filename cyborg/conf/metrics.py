# SPDX-License-Identifier: Apache-2.0
"""Options of the metrics that Prometheus reads."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.PortOpt(
        "port",
        min=1,
        help="Port on which the process answers http://HOST:PORT/metrics with its metrics, in the "
        "format of Prometheus. Unset, it does not. Processes of one machine need a port each: "
        "set it in /etc/cyborg/cyborg-api.conf, cyborg-conductor.conf and cyborg-agent.conf, of "
        "which each command reads its own after cyborg.conf.",
    ),
    cfg.HostAddressOpt(
        "host",
        default="127.0.0.1",
        help="Address on which it does. Nobody is authenticated there: let only those reach it "
        "who may know how many accelerators there are and how busy the services are.",
    ),
    cfg.FloatOpt(
        "database_interval",
        default=10.0,
        min=0.0,
        help="Seconds for which a conductor shows what it has read from the database before it "
        "reads it anew, however often it is asked.",
    ),
]
