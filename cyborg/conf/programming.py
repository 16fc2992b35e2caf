# SPDX-License-Identifier: Apache-2.0
"""Options of programming: some for conductors, some for agents."""

from oslo_config import cfg

CONDUCTOR_OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        "step_timeout",
        default=60,
        min=1,
        mutable=True,
        help="Seconds that a conductor waits for a host to program a deployable before it asks "
        "again. Meanwhile the host continues, and the next question waits for the same run, or "
        "gets its result; programming may take much longer than this.",
    ),
    cfg.IntOpt(
        "answer_timeout",
        default=60,
        min=1,
        mutable=True,
        help="Seconds that PATCH /v2/deployables/{uuid}/program waits for the end of its "
        "operation. After that it is answered with 503 and the operation's uuid, and the "
        "operation continues. At most a quarter of [api] threads requests, but at least "
        "one, wait at the same time in a process; further ones get that answer at once.",
    ),
    cfg.IntOpt(
        "operation_expiry",
        default=2592000,
        min=0,
        mutable=True,
        help="Seconds after its end at which an operation is deleted. With 0 none is.",
    ),
    cfg.IntOpt(
        "pool_interval",
        default=10,
        min=1,
        mutable=True,
        help="Seconds between two checks of each function pool, for changes that no message "
        "announces: slots that are taken or released, devices that fail or appear.",
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
        help="Seconds for which a function pool does not choose a deployable again after its "
        "programming failed. If an operation of the pool takes longer than this, and its last "
        "attempt failed, the pool programs another deployable in its place.",
    ),
    cfg.IntOpt(
        "miss_memory",
        default=600,
        min=1,
        mutable=True,
        help="Seconds for which a function pool keeps more free slots than configured, one for "
        "each slot that was requested while none was free.",
    ),
]

AGENT_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "cache_path",
        default="$state_path/bitstreams",
        help="Directory in which an agent caches the bitstreams that it fetched from Glance. Each "
        "agent needs its own.",
    ),
    cfg.IntOpt(
        "cache_size_mib",
        default=2048,
        min=0,
        mutable=True,
        help="Maximum size of that cache in MiB; 0 caches nothing. The least recently used "
        "bitstreams are removed first. A bitstream that is being written to a device does not "
        "count.",
    ),
    cfg.IntOpt(
        "max_bitstream_mib",
        default=512,
        min=1,
        mutable=True,
        help="Maximum size of a bitstream in MiB. A larger one is refused before it is fetched.",
    ),
    cfg.IntOpt(
        "tool_timeout",
        default=600,
        min=1,
        help="Seconds after which a vendor's tool that programs a device is killed, together with "
        "the processes that it started. It is then unknown which program the device runs.",
    ),
    cfg.BoolOpt(
        "require_secure_hash",
        default=True,
        mutable=True,
        help="Refuse a bitstream if Glance has only an MD5 or SHA-1 hash of it. Images uploaded "
        "before Glance 17 (Rocky) have only an MD5 checksum.",
    ),
    cfg.BoolOpt(
        "require_signature",
        default=False,
        mutable=True,
        help="Refuse a bitstream if its image is not signed. A signature is always verified if "
        "there is one. Vendors' tools then need a helper that is root, as with sudo: the "
        "agent's user could change the verified files of any other helper.",
    ),
    cfg.ListOpt(
        "trusted_certificate_ids",
        default=[],
        mutable=True,
        help="Ids, in the key manager, of the certificates that may have signed the certificate of "
        "a signature. If unset, everyone who can store a certificate there can sign bitstreams.",
    ),
]

OPTS: list[cfg.Opt] = [*CONDUCTOR_OPTS, *AGENT_OPTS]
