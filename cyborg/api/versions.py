# SPDX-License-Identifier: Apache-2.0
"""Microversions: which are served, and which one a request asks for."""

from __future__ import annotations

import re
from typing import NamedTuple

from cyborg.common import errors

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
#: Pages and filters on every list, errors as JSON, uuids instead of numbers of rows.
REGULAR = Version(2, 4)
#: Device profiles can be changed, and be private to some projects.
PROFILE_VISIBILITY = Version(2, 5)
#: Which services are up, and the removal of dead hosts.
SERVICES = Version(2, 6)
#: Devices say whether they are healthy, and attributes have types.
FACTS = Version(2, 7)
#: Operations that program deployables, and what a deployable runs.
PROGRAMMING = Version(2, 8)
#: Pools of functions that are programmed ahead of demand, and candidates in order of preference.
FUNCTION_POOLS = Version(2, 9)
#: Operations can be cancelled, and removals say what they cannot exclude.
CANCELLATION = Version(2, 10)
#: Who had which accelerator when, and what happened to devices.
HISTORY = Version(2, 11)
#: Reasons of disabled devices, and hosts that are drained.
DRAIN = Version(2, 12)
#: What projects use and have used.
USAGES = Version(2, 13)
#: Deployables say why nothing of them is given out.
WITHHELD = Version(2, 14)
#: Services say how many devices a host has, and how many accelerators nobody offers.
HOST_COUNTS = Version(2, 15)
#: Profiles can be disabled, described at length and counted, and attributes made many at a time.
PROFILE_STATE = Version(2, 16)
#: Devices and hosts can be kept from all but the profiles that tolerate it.
TAINTS = Version(2, 17)
#: A forced release has a reason, which the history keeps.
RELEASE_REASON = Version(2, 18)
#: Device profiles warn of what may fail.
PROFILE_WARNINGS = Version(2, 19)
#: Candidates say which of them are equally good.
CANDIDATE_RANK = Version(2, 20)
#: Groups of device profiles may have standard traits.
STANDARD_TRAITS = Version(2, 21)
#: Attach handles with their states, and cleaning in the history.
ATTACH_HANDLES = Version(2, 22)
#: One request gives a consumer, of whatever kind, all that it needs.
ALLOCATIONS = Version(2, 23)
#: Deployables are given another layout.
LAYOUTS = Version(2, 24)
#: Keys of hosts, with which they sign their messages.
HOST_KEYS = Version(2, 25)
#: Devices show their address on the host.
ADDRESSES = Version(2, 26)
#: Hosts say which of their cards are being programmed, and removals have a reason.
HOST_OPERATIONS = Version(2, 27)
#: A part of an allocation can name the provider that is to serve it.
NAMED_PROVIDER = Version(2, 28)
#: Devices say who manages their host: its agent, or Ironic.
MANAGED_BY = Version(2, 29)
#: Who enrols the key of a host says which node it has.
HOST_NODE = Version(2, 30)
#: Consumers on other hosts: under which name they connect, and with which key.
REMOTE_CONSUMERS = Version(2, 31)
#: Usages say since when they are whole, and owners see whether what they have is healthy.
USAGES_SINCE = HEALTH = Version(2, 32)
#: Device profiles say whether they fit a device, and candidates why there are none.
PROFILE_FITS = USAGES_SINCE
MAX = USAGES_SINCE

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
    """What to tell a client that asks for something at a microversion before it."""
    wanted = f"{HEADER}: {SERVICE_TYPE} {since}"
    return f"Served from microversion {since} on; send the header '{wanted}', or a later one"


def require(version: Version, minimum: Version) -> None:
    """Check that ``version`` is not older than ``minimum``.

    :raises NotAcceptable: it is
    """
    if version < minimum:
        raise errors.NotAcceptable(
            f"Request not acceptable. The minimal required API version should be {minimum}"
        )
