# SPDX-License-Identifier: Apache-2.0
"""Text that a container runtime takes of an allocation: names of CDI devices, or an environment."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence

from osc_lib import exceptions

from cyborg.common import allocation_states as states
from cyborg.common import readable
from cyborg.osc import command, waiting
from cyborg.osc.api import Api, Row

#: The states of one that will be ready, or will fail.
_UNDERWAY = {states.CLAIMING, states.BINDING}
#: Lines of these mean the same for podman, docker, systemd and a shell.
_PLAIN = re.compile(r"[\w.,:;/@%+=-]*", re.ASCII)
_NAME = re.compile(r"\w+", re.ASCII)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that print text for a container, and the host that it is on."""
    either = parser.add_mutually_exclusive_group()
    command.add_choice(
        either,
        "text_for",
        cdi="Print names of CDI devices, one on each line, as 'podman run --device' takes one",
        env="Print an env file, as 'podman run --env-file' takes it",
    )
    text = "With --cdi or --env: print what is on this host, if there are several"
    parser.add_argument("--on", metavar="<host>", help=text)


def text(api: Api, allocation: Row, parsed: argparse.Namespace) -> str:
    """The text, once the accelerators are ready.

    :raises CommandError: they cannot be had, or a container cannot have them
    """
    allocation = ready(api, allocation)
    host = _host(allocation, parsed.on)
    own = [each for each in allocation["accelerators"] if each["hostname"] == host]
    if parsed.text_for == "cdi":
        return "\n".join(_names(host, own))
    return "\n".join(_environment(allocation["uuid"], host, own))


def ready(api: Api, allocation: Row) -> Row:
    """The allocation once it is active; meanwhile its states are written to stderr.

    :raises CommandError: it will not be
    """
    uuid = allocation["uuid"]
    allocation = waiting.for_end(
        itertools.chain([allocation], api.looks(f"/allocations/{uuid}")),
        lambda row: row["state"] not in _UNDERWAY,
        lambda row: [f"Allocation {uuid} is {row['state']}"],
        f"Allocation {uuid} goes on; `allocation show {uuid}` shows it, and "
        f"`allocation delete {uuid}` gives it back.",
    )
    if allocation["state"] != states.ACTIVE:
        told = readable.printable(allocation["state_reason"] or "nothing can be used of it")
        raise exceptions.CommandError(f"Allocation {uuid} is {allocation['state']}: {told}")
    return allocation


def _host(allocation: Row, named: str | None) -> str:
    hosts: Sequence[str] = allocation["hosts"]
    if named in hosts or (named is None and len(hosts) == 1):
        return named or hosts[0]
    raise exceptions.CommandError(
        f"A container has what is on its own host: name it by --on, one of {', '.join(hosts)}."
    )


def _names(host: str, own: Sequence[Row]) -> list[str]:
    """The names, of which none may be missing: a container would lack what its consumer has."""
    found = [each["attach_handle_info"].get("cdi_device") for each in own]
    if None in found:
        raise exceptions.CommandError(
            f"{host} writes no file for containers of {found.count(None)} of {len(found)} "
            "accelerators: [agent] cdi_dir is not set there, or a container cannot have them."
        )
    return found


def _environment(uuid: str, host: str, own: Sequence[Row]) -> Iterator[str]:
    infos = [dict(each["attach_handle_info"]) for each in own]
    named = [each.pop("cdi_device") for each in infos if "cdi_device" in each]
    places = [place for each in infos if (place := readable.address(each))]
    yield _line("CYBORG_ALLOCATION", uuid)
    yield _line("CYBORG_HOST", host)
    yield _line("CYBORG_DEVICES", ",".join(places))
    yield _line("CYBORG_CDI_DEVICES", ",".join(named))
    for number, info in enumerate(infos):
        for key, value in info.items():
            yield _line(f"CYBORG_DEVICE_{number}_{key.upper()}", value)


def _line(name: str, value: str) -> str:
    """A line, which holds no order for who reads it, even where a host has made up the value."""
    if _NAME.fullmatch(name) and _PLAIN.fullmatch(value):
        return f"{name}={value}"
    raise exceptions.CommandError(
        f"The value of {readable.printable(name)} has characters that an env file cannot have; "
        "read it from -f json."
    )
