# SPDX-License-Identifier: Apache-2.0
"""Modules that options need: looked for when a service starts, and not missed at the first use."""

from __future__ import annotations

import importlib
from typing import Any

from oslo_config import cfg

from cyborg.common import errors

#: The groups of what the API and conductors call.
CALLED = ("glance", "nova", "placement", "oslo_limit")

_KAFKA, _MEMCACHED = "Cyborg with its extra kafka", "Cyborg with its extra memcached"
_TRACING = "oslo.messaging[tracing-http] or oslo.messaging[tracing-grpc]"
_ZSTD = "zstd zstandard application/zstd"

#: The name of an option, those of its values (or schemes of a URL) that need a module, the module,
#: and what brings it. Without values, any that is set.
NEEDS = (
    ("auth_type", "v3kerberos v3fedkerb", "requests_kerberos", "keystoneauth1[kerberos]"),
    ("auth_type", "v3oauth1", "oauthlib", "keystoneauth1[oauth1]"),
    ("auth_type", "v3samlpassword v3adfspassword", "lxml.etree", "keystoneauth1[saml2]"),
    ("kombu_compression", "brotli application/x-brotli", "brotli", "brotli"),
    ("kombu_compression", _ZSTD, "backports.zstd", "backports.zstd"),
    ("memcache_sasl_enabled", "True", "bmemcached", "python-binary-memcached"),
    ("memcache_security_strategy", "ENCRYPT", "cryptography", "cryptography"),
    ("memcache_tls_enabled", "True", "bmemcached", "python-binary-memcached"),
    ("memcached_servers", "", "memcache", _MEMCACHED),
    ("require_signature", "True", "castellan", "castellan"),
    ("require_signature", "True", "cursive", "cursive"),
    ("tracing_enabled", "True", "opentelemetry.sdk", _TRACING),
    ("transport_url", "kafka", "confluent_kafka", _KAFKA),
    ("use_journal", "True", "systemd.journal", "systemd-python"),
)


def check(conf: cfg.ConfigOpts, *groups: str) -> None:
    """Load the modules that the options of these groups need, as far as they are registered.

    :raises Misconfigured: one cannot be loaded
    """
    for group in ("DEFAULT", *groups):
        options: Any = conf if group == "DEFAULT" else getattr(conf, group, None)
        for option, values, module, package in NEEDS:
            value = getattr(options, option, None)
            if value and (not values or str(value).partition("://")[0] in values.split()):
                try:
                    importlib.import_module(module)
                except ImportError as exc:
                    raise missing(f"[{group}] {option}", module, package, exc) from exc


def missing(option: str, module: str, package: str, why: ImportError) -> errors.Misconfigured:
    """The error that says that a module which an option needs is not there."""
    return errors.Misconfigured(
        f"{option} needs the Python module {module}, which is not installed or does not load "
        f"({why}): install {package}."
    )
