# SPDX-License-Identifier: Apache-2.0
"""Which card a handle is of: on one card, one handle is cleaned at a time.

A reset, an erasure or a removed type may take a card's other functions along for a moment, whatever
driver does it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from cyborg.drivers import base, identity, pci
from cyborg.drivers.pci import facts


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


def why_other(
    driver: base.Driver, path: base.ControlPath, expected: Mapping[str, str]
) -> str | None:
    """Why nothing may be done to the card at a control path, as it is now; None if it may.

    A disk must show its serial. Others hide theirs from the host while guests have them.

    :raises OSError: that cannot be told
    """
    info = path.cpid_info
    if any(key.startswith(identity.WAS) for key in info):
        return f"its card is gone, and another one is at its place, {path.place}"
    if not expected or "function" not in info:
        return None
    function = (functions := pci.scan()).get(pci.join(info))
    if function is None:
        return None  # The driver says what that means to it.
    shown = facts.attributes(function, functions)
    of_pci = shown.get(identity.SERIAL_KEY)
    if isinstance(driver, pci.PciDriver):
        own = driver.attributes(function, functions).items()
        shown |= {key: value for key, value in own if value}
    board = json.dumps({"product_id": function.device})
    was = identity.Identity(expected.get(identity.SERIAL_KEY), expected.get("product"))
    serial = of_pci if was.is_of_pci else shown.get(identity.SERIAL_KEY)
    now = identity.of([serial], function.vendor, board)
    if was.has_other_product(now) or was.has_other_serial(now):
        return f"another card is at {path.place}: {now.to_wire()} instead of {dict(expected)}"
    is_disk = getattr(driver, "type", None) in base.DISKS
    is_shown = now.serial is not None and now.is_of_pci == was.is_of_pci
    if is_disk and was.serial is not None and not is_shown:
        return f"the disk at {path.place} does not show now that its serial is {was.serial}"
    return None


def _place(address: str) -> str:
    card = None
    # Without sysfs no driver finds a function either.
    with contextlib.suppress(OSError):
        function = pci.scan().get(address)
        card = function.pf if function is not None else None
    return (card or address).rpartition(".")[0]
