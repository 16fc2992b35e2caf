# SPDX-License-Identifier: Apache-2.0
"""Options of the metrics that Prometheus reads."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.PortOpt(
        "port",
        min=1,
        help="Port on which the process serves its metrics to Prometheus, at "
        "http://HOST:PORT/metrics. If unset, it serves none. Each process on a machine needs its "
        "own port: set it in /etc/cyborg/cyborg-api.conf, cyborg-conductor.conf and "
        "cyborg-agent.conf, which the command of that name reads after cyborg.conf.",
    ),
    cfg.HostAddressOpt(
        "host",
        default="127.0.0.1",
        help="Address of that port. There is no authentication: everyone who can reach it sees how "
        "many accelerators there are and how busy the services are.",
    ),
    cfg.ListOpt(
        "names",
        default=[],
        help="Names by which Prometheus reaches that port, besides addresses, [DEFAULT] host, the "
        "name of the machine and localhost. A request for any other name is answered 403: "
        "otherwise a web page could read the metrics in a browser, by a name that leads here.",
    ),
    cfg.FloatOpt(
        "database_interval",
        default=10.0,
        min=0.0,
        help="Seconds for which a conductor serves the same values from the database before it "
        "reads them again.",
    ),
]
