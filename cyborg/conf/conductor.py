# SPDX-License-Identifier: Apache-2.0
"""Options of the conductor."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "poll_interval",
        default=5.0,
        min=0.1,
        mutable=True,
        help="Seconds between two looks for work, and between two runs of the periodic tasks. A "
        "message announces most work at once; work whose message is lost waits this long.",
    ),
    cfg.IntOpt(
        "work_lease",
        default=30,
        min=2,
        help="Seconds for which a conductor owns a piece of work without renewing its claim. "
        "After that another conductor takes it over.",
    ),
    cfg.IntOpt(
        "bind_deadline",
        default=240,
        min=1,
        mutable=True,
        help="Seconds after which an accelerator request becomes BindFailed because its host "
        "step makes no progress. Time without a connection to the message broker does not "
        "count. Keep it a minute below Nova's [DEFAULT] arq_binding_timeout, by default "
        "300, on every compute host: Cyborg may see the deadline half a minute late, and "
        "must send its event before Nova gives up. Raise Nova's option before you raise "
        "this one.",
    ),
    cfg.IntOpt(
        "host_step_timeout",
        default=60,
        min=1,
        mutable=True,
        help="Seconds that one attempt at a host step may take before it is tried again.",
    ),
    cfg.IntOpt(
        "host_down_time",
        default=180,
        min=1,
        mutable=True,
        help="Seconds without a report from its agent after which a host counts as down, until "
        "its next report. Until then Placement offers nothing of it; the records of its "
        "devices are kept. Set it to several times the largest [agent] report_interval. If "
        "several hosts are up and none reports, that time does not count, up to twenty "
        "times this value.",
    ),
    cfg.IntOpt(
        "max_report_devices",
        default=4096,
        min=1,
        mutable=True,
        help="Most devices that a host may report. A report of more is refused as a whole, and "
        "GET /v2/services shows that as the error refused-messages of the host for an hour.",
    ),
    cfg.IntOpt(
        "max_report_bytes",
        default=16 * 1024 * 1024,
        min=1,
        mutable=True,
        help="Most bytes that a host's report may have as JSON; a device has one or two "
        "thousand. A larger one is refused as a whole, and GET /v2/services shows that as "
        "the error refused-messages of the host. No message may exceed 16 MiB or the limit "
        "of the message broker.",
    ),
    cfg.FloatOpt(
        "max_gone_share",
        default=0.5,
        min=0.0,
        max=1.0,
        mutable=True,
        help="Share of a host's devices, or of its attach handles, that one report may drop. If "
        "a report drops more, as when the only card of a host is taken out, all are kept "
        "until the next report lacks them too. Meanwhile GET /v2/services shows an error "
        "of cyborg-conductor. With 1 nothing is kept.",
    ),
    cfg.IntOpt(
        "keep_vanished",
        default=604800,
        min=0,
        mutable=True,
        help="Seconds for which the record of an unused card is kept after the card has vanished "
        "from the PCI bus of its host, or another card is at its address. The card is shown as "
        "missing, and keeps its record if it comes back with its serial. With 0 the record is "
        "deleted at once. A device that is on the bus and no longer reported is always deleted at "
        "once.",
    ),
    cfg.IntOpt(
        "arq_expiry",
        default=86400,
        min=0,
        mutable=True,
        help="Seconds after which an accelerator request that was never bound is deleted, and an "
        "allocation that has failed. With 0 none is.",
    ),
    cfg.IntOpt(
        "history_expiry",
        default=7776000,
        min=0,
        mutable=True,
        help="Seconds for which the history is kept: who had which accelerator, faults, failed "
        "binds, programming. Each entry is deleted that long after its end; usage over a period "
        "is summed from what is left. With 0 none is deleted.",
    ),
    cfg.IntOpt(
        "placement_audit_interval",
        default=3600,
        min=0,
        mutable=True,
        help="Seconds within which the providers of every host are read once from Placement in "
        "full, and repaired if something else has changed or deleted them. The hosts are "
        "spread over that time. With 0 none is read in full. Even then Cyborg checks every "
        "minute whether a provider is gone or has another generation.",
    ),
    cfg.IntOpt(
        "instance_audit_interval",
        default=600,
        min=0,
        mutable=True,
        help="Seconds between two questions to Nova whether an instance with accelerators still "
        "exists, if [nova] is configured. With 0 Nova is not asked: choose that if accelerators "
        "are bound for anything but instances of this Nova. The user in [nova] must be allowed to "
        "see the servers of all projects.",
    ),
    cfg.IntOpt(
        "instance_grace",
        default=3600,
        min=1,
        mutable=True,
        help="Seconds for which Nova must report an instance as missing before its accelerators "
        "are released, unless Placement has no allocation of the instance either. They are only "
        "released if Nova has another instance with accelerators, or says that it has deleted "
        "this one.",
    ),
    cfg.IntOpt(
        "allocation_audit_interval",
        default=30,
        min=0,
        mutable=True,
        help="Seconds between two looks at the allocations in Placement of each instance that "
        "has accelerators. Each provider that is in use costs Placement one request a "
        "look. A look covers all accelerators that were bound in the last quarter of an "
        "hour, and 600 others in turn, so that twenty intervals cover all. If an instance "
        "has no allocation there, Nova is asked at once. The instance loses its "
        "accelerators if Nova does not have it either; see instance_grace. Until then they "
        "are reserved in Placement. Accelerators of consumers of POST /v2/allocations are "
        "claimed again, and reserved where others have the room. 0 turns these looks off, "
        "also those of cyborg-status. With 0 for instance_audit_interval instances are "
        "left out: choose that if accelerators are bound for anything that claims nothing "
        "in Placement.",
    ),
    cfg.IntOpt(
        "max_instance_releases",
        default=20,
        min=1,
        mutable=True,
        help="How many missing instances may lose their accelerators within "
        "instance_audit_interval, by all conductors and by `cyborg-status check --repair` "
        "together. If more are missing, the rest wait, an error is logged, and the metric "
        "cyborg_instances_held_back counts them. An instance that Nova says it has "
        "deleted, and that has no allocation in Placement either, does not count.",
    ),
    cfg.StrOpt(
        "signing_key_file",
        help="PEM file with the private key with which conductors sign their orders to hosts. "
        "All conductors use the same key. `openssl genpkey -algorithm ed25519` makes one. "
        "Its public part belongs into [agent] conductor_public_keys of every agent, before "
        "this is set.",
    ),
]
