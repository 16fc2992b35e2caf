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
        ("accelerator LATEST", "2.4"),
        ("latest", "2.4"),
        ("2.2", "2.2"),
        ("compute 2.90, accelerator 2.1", "2.1"),
        ("accelerator 2.1,accelerator 2.3", "2.3"),
        ("compute 2.90", "2.0"),
        ("compute 2.90,placement nonsense", "2.0"),
        *dict.fromkeys(
            ("", " ", "garbage", "accelerator", "accelerator 2", "accelerator 2.x",
             "accelerator 2.3.1", "accelerator 2.3 x", "accelerator 2.٣",
             "accelerator 2." + "9" * 50, "compute 2.90, garbage", "compute 2.90, one two three"),
            versions.VersionUnreadable,
        ).items(),
        *dict.fromkeys(
            ("2.5", "2.32", "2.99", "accelerator 1.9", "accelerator 3.0", "-2.3"),
            versions.VersionNotServed,
        ).items(),
    ],
)
def test_what_is_asked_for(header, version) -> None:
    if isinstance(version, str):
        assert str(versions.requested(header)) == version
        return
    with pytest.raises(version, match=rf"range is: \[2.0, {versions.MAX}\]"):
        versions.requested(header)


def test_a_feature_asks_for_its_microversion() -> None:
    versions.require(versions.Version(2, 2), versions.PROFILE_BY_NAME)
    with pytest.raises(errors.NotAcceptable, match=r"should be 2\.2"):
        versions.require(versions.Version(2, 1), versions.PROFILE_BY_NAME)


def test_the_newest_is_the_one_of_this_release() -> None:
    assert str(versions.MAX) == "2.4"
    # Ordered as numbers.
    assert versions.Version(2, 10) > versions.Version(2, 9)
