# SPDX-License-Identifier: Apache-2.0
"""Options of earlier releases that have no effect any more.

They are accepted, so that old configuration files can be used, and each service logs at its start
which of them are set.
"""

from __future__ import annotations

import pathlib

from oslo_config import cfg

_QUOTA = "there are no quotas in Cyborg; device profiles and Nova's quotas limit what is used"
_PATHS = "programs and files are found by themselves"
_SERVICE_USER = "Cyborg calls other services as itself, never with a user's token"

#: Why each option has no effect, by group (None for DEFAULT) and name.
OBSOLETE: dict[str | None, dict[str, str]] = {
    None: {
        "bindir": _PATHS,
        "fatal_exception_format_errors": "messages are not put together from formats",
        "max_age": _QUOTA,
        "pybasedir": _PATHS,
        "quota_driver": _QUOTA,
        "quota_fpgas": _QUOTA,
        "quota_gpus": _QUOTA,
        "reservation_expire": _QUOTA,
        "until_refresh": _QUOTA,
    },
    "agent": {
        "resource_provider_startup_retries": "the agent does not talk to Placement, and the "
        "conductor waits for the root resource provider without limit",
    },
    "api": {
        "api_workers": "the built-in server has one process with [api] threads; for several, use "
        "uWSGI or the like",
    },
    "database": {"mysql_engine": "every table is InnoDB"},
    "service_user": {
        "auth_section": _SERVICE_USER,
        "auth_type": _SERVICE_USER,
        "send_service_user_token": _SERVICE_USER,
    },
}

#: Defaults of options to which others may refer, as in ``$pybasedir/x``.
_DEFAULTS = {"pybasedir": str(pathlib.Path(__file__).parents[1]), "bindir": "$pybasedir/bin"}


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options, so that ``conf`` knows which are set; their values are not used."""
    for group, options in OBSOLETE.items():
        for name in options:
            conf.register_opt(cfg.StrOpt(name, default=_DEFAULTS.get(name)), group=group)


def meaningless(conf: cfg.ConfigOpts) -> list[str]:
    """A sentence for each of these options that is set."""
    return [
        f"Option [{group or 'DEFAULT'}] {name} means nothing any more and can be removed: {why}."
        for group, options in OBSOLETE.items()
        for name, why in options.items()
        if _is_set(conf, group, name)
    ]


def _is_set(conf: cfg.ConfigOpts, group: str | None, name: str) -> bool:
    found = conf.get_location(name, group)
    return found is not None and found.location.is_user_controlled
