# SPDX-License-Identifier: Apache-2.0
"""Privileged functions, and acts of administrators, on a simulated host."""

from __future__ import annotations

import errno
import pathlib

from cyborg.drivers import privileged


def act(name: str, *arguments: object, **keywords: object) -> str:
    """Call a privileged function in this process; the name of the error, or an empty text."""
    privileged.context.set_client_mode(False)
    try:
        getattr(privileged, name)(*arguments, **keywords)
    except OSError as exc:
        return errno.errorcode[exc.errno or 0]
    except ValueError as exc:
        return str(exc)
    return ""


def unbind(address: str) -> None:
    """Take a PCI function from its driver, if it has one, as an administrator does."""
    device = pathlib.Path("/sys/bus/pci/devices", address)
    if (device / "driver").exists():
        (device / "driver" / "unbind").write_text(address)
    (device / "driver_override").write_text("\n")
