# SPDX-License-Identifier: Apache-2.0
"""Microversions: which are served, and which one a request asks for."""

from __future__ import annotations

import re
from typing import NamedTuple

from cyborg.common import errors, microversion

HEADER = "OpenStack-API-Version"
#: The header's name in a WSGI environment.
ENVIRON_KEY = "HTTP_OPENSTACK_API_VERSION"
SERVICE_TYPE = "accelerator"


class Version(NamedTuple):
    """A microversion; a later one is greater."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


MIN = Version(2, 0)
#: What each microversion brought; the pages of the API reference say it at length.
ARQ_PROJECT = Version(2, 1)
PROFILE_BY_NAME = Version(2, 2)
DEVICE_STATUS = Version(2, 3)
#: All that 18.0.0 brings.
REGULAR = MAX = Version(*map(int, microversion.NEWEST.split(".")))

_RANGE = f"The supported version range is: [{MIN}, {MAX}]."
_UNREADABLE = f"Invalid value for {HEADER} header. {_RANGE}"

#: Every answer says for caches that it depends on the header, and which versions are served.
RANGE_HEADERS = {
    "Vary": HEADER,
    "OpenStack-API-Minimum-Version": str(MIN),
    "OpenStack-API-Maximum-Version": str(MAX),
}


class VersionUnreadable(errors.NotAcceptable):
    """The header cannot be understood."""


class VersionNotServed(errors.NotAcceptable):
    """The microversion is well formed but not served."""


def headers(version: Version) -> dict[str, str]:
    """The headers of an answer given at ``version``."""
    return {**RANGE_HEADERS, HEADER: f"{SERVICE_TYPE} {version}"}


def requested(header: str | None) -> Version:
    """The microversion that the header asks for; the oldest if it asks for none of this service.

    If there are several for this service, the last one counts. A version without a service is
    taken for this one's.

    :raises VersionUnreadable: the header cannot be understood
    :raises VersionNotServed: the version is not served
    """
    if header is None:
        return MIN
    items = [item.split() for item in header.split(",")]
    asked = [item[-1] for item in items if _is_ours(item)]
    if asked:
        return _served(asked[-1].lower())
    if all(len(item) == 2 for item in items):
        # Clients may send to all services what they ask of each.
        return MIN
    raise VersionUnreadable(_UNREADABLE)


def settled(header: str | None) -> Version:
    """The microversion to answer in, even if the one asked for is not served."""
    try:
        return requested(header)
    except errors.NotAcceptable:
        return MIN


def _is_ours(item: list[str]) -> bool:
    return len(item) == 1 or (len(item) == 2 and item[0].lower() == SERVICE_TYPE)


def _served(text: str) -> Version:
    if text == "latest":
        return MAX
    match = re.fullmatch(r"(-?[0-9]{1,9})\.([0-9]{1,9})", text)
    if match is None:
        raise VersionUnreadable(_UNREADABLE)
    version = Version(int(match[1]), int(match[2]))
    if not MIN <= version <= MAX:
        part = "minor" if version.major == MIN.major else "major"
        raise VersionNotServed(
            f"Version {version} was requested but the {part} version is not supported by this "
            f"service. {_RANGE}"
        )
    return version


def served_from(since: Version) -> str:
    """The sentence for a client that asks for something at a microversion before it."""
    wanted = f"{HEADER}: {SERVICE_TYPE} {since}"
    return f"Served from microversion {since} on; send the header '{wanted}', or a later one"


def require(version: Version, minimum: Version) -> None:
    """Raise NotAcceptable if ``version`` is older than ``minimum``."""
    if version < minimum:
        raise errors.NotAcceptable(
            f"Request not acceptable. The minimal required API version should be {minimum}"
        )
