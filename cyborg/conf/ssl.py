# SPDX-License-Identifier: Apache-2.0
"""Options of the built-in server's HTTPS, by the names that they have in all of OpenStack."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.StrOpt("cert_file", help="File with the server's certificate, and those above it, in PEM."),
    cfg.StrOpt("key_file", help="File with the certificate's private key, in PEM."),
    cfg.StrOpt(
        "ca_file",
        help="File with the certificates of the authorities, one of which must have signed a "
        "client's certificate. Unset, clients need none.",
    ),
]
