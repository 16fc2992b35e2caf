# SPDX-License-Identifier: Apache-2.0
"""Names that look unused to vulture but are asked for by a library; each says by which.

Read by vulture only, never imported.
"""

# Parameters of callbacks: the names are the caller's.
element  # sqlalchemy.ext.compiler.compiles
record  # sqlalchemy.event, pool events
server_port  # oslo.middleware healthcheck plugins
