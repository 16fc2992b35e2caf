# SPDX-License-Identifier: Apache-2.0
"""Attach handles that are for containers: words of drivers, the database, and clients."""

#: The attach type of device nodes of the host: for containers on this host, never for a guest.
NODES = "NODES"
#: The resource class of shares of a card, and the key of the number of each in its attach info.
SHARE_CLASS, SHARE_KEY = "CUSTOM_GPU_SHARE", "share"
