# SPDX-License-Identifier: Apache-2.0
"""What an image says of its function can be recorded of whatever runs it."""

from __future__ import annotations

from typing import cast

import pytest
import sqlalchemy as sa

from cyborg.db import models
from cyborg.drivers import value_checks
from cyborg.peers import glance
from cyborg.programming import image_match, program

#: In capitals it has twice as many characters.
SHARP_S = "\N{LATIN SMALL LETTER SHARP S}"


def why_not_fit(function: str) -> str | None:
    """Why an image that says that it is the function fits nothing, or None."""
    image = glance.Image(
        uuid="9b2c5b5e-5e0c-4e39-9d1c-1d2d6f1f6a11",
        name="image",
        size=1,
        hash_algo=None,
        hash_value=None,
        checksum=None,
        status="active",
        properties={glance.FUNCTION_ID: function},
    )
    return image_match.why_not(
        image,
        program.Program(image_uuid=image.uuid),
        device=models.Device(),
        deployable=models.Deployable(name="host-1_a"),
        attributes=[],
    )


@pytest.mark.parametrize("function", [SHARP_S * 128, SHARP_S, "a b", "a" * 129, "aes\n"])
def test_what_is_no_id_of_a_function_is_refused(function: str) -> None:
    assert why_not_fit(function) == (
        "its accel:function_id is no id of a function: use letters, digits, '_', '.' and '-', "
        "128 at most."
    )


@pytest.mark.parametrize(
    "function", ["", "aes-128", "a" * 128, "d8424dc4-a4a3-c413-f89e-433683f9040b", "A_b.c"]
)
def test_an_id_of_a_function_fits_and_can_be_recorded(function: str) -> None:
    assert why_not_fit(function) is None
    value_checks.function_id(function)
    column = cast(sa.String, models.Deployable.__table__.c.function_plain.type)
    assert len(program.plain(function)) <= (column.length or 0)
