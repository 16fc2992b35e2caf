# SPDX-License-Identifier: Apache-2.0
"""Names that look unused to vulture but that a library needs; each line says which.

Only vulture reads this file; nothing imports it.
"""

# Parameters of callbacks: the names are the caller's.
element  # sqlalchemy.ext.compiler.compiles
record  # sqlalchemy.event, pool events
server_port  # oslo.middleware healthcheck plugins
