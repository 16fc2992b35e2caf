# SPDX-License-Identifier: Apache-2.0
"""Which microversion a header asks for."""

from __future__ import annotations

import pytest

from cyborg.api import versions
from cyborg.common import errors


@pytest.mark.parametrize(
    ("header", "version"),
    [
        (None, "2.0"),
        ("accelerator 2.0", "2.0"),
        ("accelerator 2.3", "2.3"),
        ("ACCELERATOR  2.03", "2.3"),
        ("accelerator LATEST", str(versions.MAX)),
        ("latest", str(versions.MAX)),
        ("2.2", "2.2"),
        ("compute 2.90, accelerator 2.1", "2.1"),
        ("accelerator 2.1,accelerator 2.3", "2.3"),
        ("compute 2.90", "2.0"),
        ("compute 2.90,placement nonsense", "2.0"),
    ],
)
def test_what_is_asked_for(header: str | None, version: str) -> None:
    assert str(versions.requested(header)) == version


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        "garbage",
        "accelerator",
        "accelerator 2",
        "accelerator 2.x",
        "accelerator 2.3.1",
        "accelerator 2.3 x",
        "accelerator 2.٣",
        "accelerator 2." + "9" * 50,
        "compute 2.90, garbage",
        "compute 2.90, one two three",
    ],
)
def test_what_is_no_microversion(header: str) -> None:
    with pytest.raises(versions.VersionUnreadable, match=rf"range is: \[2.0, {versions.MAX}\]"):
        versions.requested(header)


@pytest.mark.parametrize(
    "header", ["2.5", "2.32", "2.99", "accelerator 1.9", "accelerator 3.0", "-2.3"]
)
def test_what_is_not_served(header: str) -> None:
    with pytest.raises(versions.VersionNotServed, match=rf"range is: \[2.0, {versions.MAX}\]"):
        versions.requested(header)


def test_a_feature_asks_for_its_microversion() -> None:
    versions.require(versions.Version(2, 2), versions.PROFILE_BY_NAME)
    with pytest.raises(errors.NotAcceptable, match=r"should be 2\.2"):
        versions.require(versions.Version(2, 1), versions.PROFILE_BY_NAME)


def test_the_newest_is_the_one_of_this_release() -> None:
    assert str(versions.requested("latest")) == "2.4"
    # Ordered as numbers.
    assert versions.Version(2, 10) > versions.Version(2, 9)
