# SPDX-License-Identifier: Apache-2.0
"""What reports say of the programs that deployables run, and the trait of a function."""

from __future__ import annotations

from collections.abc import Mapping

from cyborg import request_groups
from cyborg.db import models
from cyborg.drivers import base
from cyborg.programming import program


def update(row: models.Deployable, deployable: base.Deployable) -> None:
    """Take over how a deployable is programmed, and what its hardware shows.

    While it is being programmed nothing is believed but what the host says in the end; what is
    shown counts where nothing was written after all. Where the hardware has lost a program that
    somebody uses, the deployable is in doubt from now on.
    """
    returns = row.program_mode is None
    row.program_mode = deployable.program_mode
    if deployable.program_mode is None:
        _keep_for_guests(row)
        return
    row.function_vendor = deployable.function_vendor
    _set_trait(row)
    shown = deployable.function
    if shown is None:
        return
    is_as_recorded = program.plain(shown) == program.plain(row.function_id or "")
    if row.in_doubt:
        row.contradicted = not is_as_recorded
    if row.in_doubt or is_as_recorded:
        return
    if _is_used(row) and not (returns and _is_required(row, shown)):
        row.in_doubt = row.contradicted = True
        return
    _follow(row, shown)


def waits(row: models.Deployable) -> bool:
    """Whether the record of a deployable that is not programmed any more is kept for a guest."""
    return row.program_mode is None and (row.function_id or row.bitstream_id) is not None


def _keep_for_guests(row: models.Deployable) -> None:
    """What a deployable runs that is not programmed any more is for its driver alone to say.

    What its guests were given stays recorded for the day when it can be programmed again.
    """
    if row.in_doubt:
        return
    if _is_used(row):
        _set_trait(row, known=False)
    else:
        _follow(row, "")


def _follow(row: models.Deployable, shown: str) -> None:
    """Record a function that Cyborg has not written, or none."""
    row.bitstream_id = row.bitstream = row.function_name = None
    row.programmed_ms = row.programmed_by = row.verified_by = None
    row.function_id = shown or None
    row.function_plain = program.plain(shown) if shown else None
    _set_trait(row)


def _is_used(row: models.Deployable) -> bool:
    """Whether somebody has what was programmed here, or has asked for what the hardware shows."""
    arqs = [handle.arq for handle in row.attach_handles if handle.arq]
    if row.bitstream_id is not None:
        return bool(arqs)
    return row.function_id is not None and any(_asks_for(arq.group, row) for arq in arqs)


def _is_required(row: models.Deployable, shown: str) -> bool:
    """Whether a guest requires what is shown: it came while that was for the driver to say."""
    arqs = (handle.arq for handle in row.attach_handles if handle.arq)
    key = f"trait:{program.function_trait(row.function_vendor, shown)}"
    return any(arq.state in models.SERVING and arq.group.get(key) == "required" for arq in arqs)


def _asks_for(group: Mapping[str, str], row: models.Deployable) -> bool:
    """Whether a group asks for a program, or for the trait of the function recorded of the row."""
    known = (each.value for each in program.traits(row.function_vendor, row.function_id))
    required = any(group.get(f"trait:{trait}") == "required" for trait in known)
    return required or not request_groups.PROGRAM_KEYS.isdisjoint(group)


def _set_trait(row: models.Deployable, *, known: bool = True) -> None:
    present = next((each for each in row.attributes if each.key == program.TRAIT_KEY), None)
    wanted = next(program.traits(row.function_vendor, row.function_id), None) if known else None
    if present is not None and wanted is not None:
        # In place: another row of that key would be inserted before this one is deleted.
        present.value = wanted.value
    elif present is not None:
        row.attributes.remove(present)
    elif wanted is not None:
        row.attributes.append(wanted)
