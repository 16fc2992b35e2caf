# SPDX-License-Identifier: Apache-2.0
"""HTTPS options of the built-in server, named as in the rest of OpenStack."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.StrOpt("cert_file", help="PEM file with the server's certificate and its chain."),
    cfg.StrOpt("key_file", help="PEM file with the certificate's private key."),
    cfg.StrOpt(
        "ca_file",
        help="PEM file with the certificates of the authorities that sign clients' certificates. "
        "If unset, clients need no certificate.",
    ),
]
