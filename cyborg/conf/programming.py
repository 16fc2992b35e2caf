# SPDX-License-Identifier: Apache-2.0
"""Options of programming, some for conductors and some for agents."""

from oslo_config import cfg

CONDUCTOR_OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        "step_timeout",
        default=60,
        min=1,
        mutable=True,
        help="Seconds that a conductor waits for a host to program a deployable before it asks "
        "again. The host goes on meanwhile, and is joined; programming may take much longer.",
    ),
    cfg.IntOpt(
        "answer_timeout",
        default=60,
        min=1,
        mutable=True,
        help="Seconds that PATCH /v2/deployables/{uuid}/program waits for the end. After that it "
        "is answered 503 with the uuid of the operation, which goes on.",
    ),
    cfg.IntOpt(
        "operation_expiry",
        default=2592000,
        min=0,
        mutable=True,
        help="Seconds after its end at which an operation is forgotten; 0 keeps it for good.",
    ),
]

AGENT_OPTS: list[cfg.Opt] = []

OPTS: list[cfg.Opt] = [*CONDUCTOR_OPTS, *AGENT_OPTS]
