# SPDX-License-Identifier: Apache-2.0
"""Options of the conductor."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "poll_interval",
        default=5.0,
        min=0.1,
        mutable=True,
        help="Seconds after which a conductor looks for work by itself. It is told at once of "
        "most work; this is how long it takes to notice when that message was lost.",
    ),
    cfg.IntOpt(
        "work_lease",
        default=30,
        min=2,
        help="Seconds for which a conductor owns a piece of work without renewing the claim. "
        "After that another conductor takes the work over.",
    ),
    cfg.IntOpt(
        "bind_deadline",
        default=300,
        min=1,
        mutable=True,
        help="Seconds after which an accelerator request whose host step makes no progress is "
        "BindFailed. Time during which the message broker cannot be reached does not count.",
    ),
    cfg.IntOpt(
        "host_step_timeout",
        default=60,
        min=1,
        mutable=True,
        help="Seconds one attempt of a host step may take before it is tried again.",
    ),
    cfg.IntOpt(
        "host_down_time",
        default=180,
        min=1,
        mutable=True,
        help="Seconds without a report from its agent after which a host is down, until its next "
        "report. What it has is kept. Let it be several times [agent] report_interval of every "
        "host.",
    ),
    cfg.IntOpt(
        "arq_expiry",
        default=86400,
        min=0,
        mutable=True,
        help="Seconds after which an accelerator request that nobody has ever bound is deleted; "
        "0 keeps it for good.",
    ),
    cfg.IntOpt(
        "placement_audit_interval",
        default=3600,
        min=0,
        mutable=True,
        help="Seconds in which every host's providers in Placement are once read in full, spread "
        "over that time, so that what others changed or deleted is put right though nobody told "
        "of it; 0 never does.",
    ),
    cfg.IntOpt(
        "instance_audit_interval",
        default=600,
        min=0,
        mutable=True,
        help="Seconds after which Nova is asked again for each instance that has accelerators, "
        "where [nova] is configured; 0 never asks. Turn it off where accelerators are bound for "
        "anything but instances of that Nova. The user of [nova] has to see the servers of all "
        "projects.",
    ),
    cfg.IntOpt(
        "instance_grace",
        default=3600,
        min=1,
        mutable=True,
        help="Seconds for which Nova must not have known an instance before its accelerators are "
        "released.",
    ),
]
