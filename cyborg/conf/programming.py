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
        "is answered 503 with the uuid of the operation, which goes on; or at once, if half as "
        "many requests as there are [api] api_workers wait already.",
    ),
    cfg.IntOpt(
        "operation_expiry",
        default=2592000,
        min=0,
        mutable=True,
        help="Seconds after its end at which an operation is forgotten; 0 keeps it for good.",
    ),
    cfg.IntOpt(
        "pool_interval",
        default=10,
        min=1,
        mutable=True,
        help="Seconds after which conductors look at each function pool again, for what no message "
        "tells of: slots that are taken or given back, devices that fail or come.",
    ),
    cfg.IntOpt(
        "pool_step",
        default=2,
        min=1,
        mutable=True,
        help="How many deployables may be programmed for one function pool at the same time.",
    ),
    cfg.IntOpt(
        "pool_retry",
        default=300,
        min=1,
        mutable=True,
        help="Seconds for which a function pool leaves a deployable alone that could not be "
        "programmed for it. An operation of the pool that takes longer than that, and could not go "
        "on when it was last tried, leaves its place to another deployable.",
    ),
    cfg.IntOpt(
        "miss_memory",
        default=600,
        min=1,
        mutable=True,
        help="Seconds for which a function pool has as many more slots than it asks for as were "
        "missed: asked for while there were none.",
    ),
]

AGENT_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "cache_path",
        default="$state_path/bitstreams",
        help="Directory in which an agent keeps the bitstreams that it has fetched from Glance. "
        "Each agent needs one of its own.",
    ),
    cfg.IntOpt(
        "cache_size_mib",
        default=2048,
        min=0,
        mutable=True,
        help="Most mebibytes of bitstreams that an agent keeps. Those go first that were used "
        "longest ago; 0 keeps none. What is being written to a device does not count.",
    ),
    cfg.IntOpt(
        "max_bitstream_mib",
        default=512,
        min=1,
        mutable=True,
        help="Most mebibytes of one bitstream. A larger one is refused before it is fetched.",
    ),
    cfg.IntOpt(
        "tool_timeout",
        default=600,
        min=1,
        help="Seconds after which a vendor's tool that programs a device is ended, with all that "
        "it has started. What the device runs is not known then.",
    ),
    cfg.BoolOpt(
        "require_secure_hash",
        default=True,
        mutable=True,
        help="Whether an agent refuses a bitstream for which Glance has no better hash than MD5 or "
        "SHA-1. Images that were uploaded before Glance 17 (Rocky) have only an MD5 checksum.",
    ),
    cfg.BoolOpt(
        "require_signature",
        default=False,
        mutable=True,
        help="Whether an agent refuses a bitstream whose image is not signed. The signature of one "
        "that is signed is always verified.",
    ),
    cfg.ListOpt(
        "trusted_certificate_ids",
        default=[],
        mutable=True,
        help="Ids, in the key manager, of the certificates that may sign the certificate of a "
        "signature. Unset, whoever may store a certificate there can sign bitstreams.",
    ),
]

OPTS: list[cfg.Opt] = [*CONDUCTOR_OPTS, *AGENT_OPTS]
