# SPDX-License-Identifier: Apache-2.0
"""Which card a handle is of: on one card, one handle is cleaned at a time.

A reset, an erasure or a removed type may take a card's other functions along for a moment, whatever
driver does it.
"""

from __future__ import annotations

import contextlib

from cyborg.drivers import base, pci


def card_of(handle: base.HeldHandle) -> str:
    """A key that all handles of the card have.

    Of a PCI function it is the place of its physical function without the number, as virtual
    functions may have other device numbers than that. A function that is not on the bus has a place
    of its own. Of anything else it is the control path of its device.
    """
    path = handle.control_path
    for info in (handle.attach_info, path.cpid_info):
        with contextlib.suppress(KeyError):
            return _place(pci.join(info))
    return base.canonical_json([path.cpid_type, dict(path.cpid_info)])


def _place(address: str) -> str:
    card = None
    # Without sysfs no driver finds a function either.
    with contextlib.suppress(OSError):
        function = pci.scan().get(address)
        card = function.pf if function is not None else None
    return (card or address).rpartition(".")[0]
