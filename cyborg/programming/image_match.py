# SPDX-License-Identifier: Apache-2.0
"""Match of a bitstream and a deployable, by the properties of its image."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cyborg.db import models
from cyborg.drivers import base, value_checks
from cyborg.peers import glance
from cyborg.programming import program


def why_not(
    image: glance.Image,
    what: program.Program,
    *,
    device: models.Device,
    deployable: models.Deployable,
    attributes: Iterable[models.Attribute],
) -> str | None:
    """The reason why the deployable cannot run the image: the first property, or None.

    A property that the image does not have fits.
    """
    for key in (glance.FUNCTION_ID, glance.FUNCTION_NAME):
        try:
            value_checks.text(key, image.properties.get(key) or "-", value_checks.NAME_MAX)
        except ValueError:
            return f"its {key} is no text of at most {value_checks.NAME_MAX} characters."
    rows = list(attributes)
    try:
        value_checks.function_id(image.function_id or "")
    except ValueError:
        return (
            f"its {glance.FUNCTION_ID} is no id of a function: use letters, digits, '_', '.' and "
            "'-', 128 at most."
        )
    own = image.properties
    for key in (glance.VENDOR, glance.BOARD, glance.REGION_ID, glance.VERSION):
        if own.get(key) and not _fits(key, own[key], device, deployable, rows):
            return f"its {key} is {own[key]}, which deployable {deployable.name} is not."
    return why_other_function(image, what)


def why_other_function(image: glance.Image, what: program.Program) -> str | None:
    """The reason why the image is not what was asked for, whatever deployable it is for."""
    function, name = image.function_id, image.function_name
    if what.function_id and not (function and program.same(what.function_id, function)):
        return f"its {glance.FUNCTION_ID} is {function or 'not set'}, not {what.function_id}."
    if what.function_name not in {None, name}:
        return f"its {glance.FUNCTION_NAME} is {name or 'not set'}, not {what.function_name}."
    return None


#: Parts of the traits that name a region and a function, and no card.
_REGION = "FPGA_REGION_"
_FUNCTION = "FPGA_FUNCTION_ID_"


def _fits(
    key: str,
    value: str,
    device: models.Device,
    deployable: models.Deployable,
    attributes: Collection[models.Attribute],
) -> bool:
    """A property of a bitstream, by its key, is true of the deployable."""
    facts = {row.key: row.value for row in attributes}
    traits = {row.value for row in attributes if row.key.startswith(base.TRAIT_PREFIX)}
    match key:
        case glance.VENDOR:
            vendors = {device.vendor, deployable.function_vendor} - {None, ""}
            return _plain(value) in map(_plain, vendors)
        case glance.BOARD:
            names = (device.model, facts.get("product", ""))
            return _plain(value) in map(_plain, names) or _is_card(value, traits)
        case glance.REGION_ID:
            # If a driver knows no regions, a bitstream that names one is for other hardware.
            end = "_" + value.replace("-", "").upper()
            return any(trait.endswith(end) for trait in traits if _REGION in trait)
    # The version of the static part, which some drivers do not know.
    known = facts.get("firmware")
    return known is None or _plain(value) == _plain(known)


def _is_card(board: str, traits: Iterable[str]) -> bool:
    """A trait names the card so, such as ``CUSTOM_FPGA_INTEL_PAC_ARRIA10``."""
    end = "_" + board.upper().replace("-", "_").replace(" ", "_")
    cards = (trait for trait in traits if _REGION not in trait and _FUNCTION not in trait)
    return any(trait.endswith(end) for trait in cards)


def _plain(text: str) -> str:
    return text.strip().lower().removeprefix("0x")
