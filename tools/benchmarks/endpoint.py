# SPDX-License-Identifier: Apache-2.0
"""What a client can measure of a Cyborg that runs already, with nothing but its URL."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping

import client
from client import Client, Failed, Target

#: How many boots of each number at once.
TOTALS = {1: 40, 8: 64, 32: 96}
NEEDED = """What an endpoint must have:
  --profile names a device profile of one accelerator; each boot takes one and gives it back.
  Its host has reported devices that serve the profile, with as many free attach handles as there
  are boots at once, and somebody takes the events that Cyborg sends to Nova: they are not seen
  here. A boot is done when GET shows its ARQs as bound.
  The host and its providers are looked up; name them if there are several hosts, or if some
  providers do not serve the profile.
  The caller, whose token --header gives, must be allowed what Nova is, with a service token.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say which endpoint, and as whom."""
    asked = parser.add_argument_group("a Cyborg that runs already")
    asked.add_argument("--endpoint", metavar="URL", help="such as http://host/accelerator/v2")
    asked.add_argument(
        "--header", action="append", default=[], metavar="NAME:TEXT",
        help="sent with each request, such as X-Auth-Token:...; several can be given",
    )  # fmt: skip
    asked.add_argument("--profile", help="the device profile of its boots")
    asked.add_argument("--host", help="the host of its boots, as Placement calls its root provider")
    asked.add_argument("--provider", action="append", default=[], metavar="UUID")
    asked.add_argument(
        "--at-once", type=int, nargs="+", default=sorted(TOTALS), choices=sorted(TOTALS),
        help="how many of its boots at once",
    )  # fmt: skip
    asked.add_argument(
        "--beside-ours", action="store_true", help="start and measure this Cyborg too"
    )


class Endpoint:
    """The API at a URL, and where on it ARQs can be bound."""

    def __init__(self, options: argparse.Namespace) -> None:
        if not options.profile:
            raise Failed("--endpoint needs --profile")
        self._profile = options.profile
        self._counts = options.at_once
        self._client = Client("endpoint", options.endpoint, headers(options.header))
        host = options.host or self._only_host()
        providers = options.provider or self._providers()
        self._targets = [Target(host, provider) for provider in providers]
        # Until then threads and connections are missing, and nothing is compiled.
        self._boots(max(self._counts), 2 * max(self._counts))

    def _only_host(self) -> str:
        found = sorted({one["hostname"] for one in self._client.ask("GET", "/devices")["devices"]})
        if len(found) != 1:
            raise Failed(f"name one of its hosts with --host: {', '.join(found) or 'it has none'}")
        return str(found[0])

    def _providers(self) -> list[str]:
        listed = self._client.ask("GET", "/deployables")["deployables"]
        found = [one["rp_uuid"] for one in listed if one["num_accelerators"]]
        if not found:
            raise Failed("it has no deployable with an accelerator")
        return found

    def one_round(self, size: float) -> dict[str, float]:
        """Boots a second, the time of one, and the lists; a smaller ``size`` makes fewer boots."""
        found: dict[str, float] = {}
        for count in self._counts:
            total = max(count, round(TOTALS[count] * size))
            begin = time.perf_counter()
            taken = self._boots(count, total)
            found[f"boots 1x{count}"] = total / (time.perf_counter() - begin)
            found[f"time of boots 1x{count}"] = 1000 * statistics.median(taken)
        for name, path, key in (
            ("list deployables", "/deployables", "deployables"),
            ("list arqs", "/accelerator_requests", "arqs"),
        ):
            took = client.listed(self._client.ask, path, key)
            if took is not None:
                found[name] = took
        return found

    def _boots(self, count: int, total: int) -> list[float]:
        def boot(slot: int) -> None:
            target = self._targets[slot % len(self._targets)]
            client.boot(self._client.ask, self._profile, [target])

        return client.at_once(boot, count, total)


def headers(given: list[str]) -> Mapping[str, str]:
    """Headers from texts such as ``X-Auth-Token:...``."""
    pairs = [text.partition(":") for text in given]
    if not all(name and colon for name, colon, _ in pairs):
        raise Failed("a --header must be of the form NAME:TEXT")
    return {name.strip(): text.strip() for name, _, text in pairs}
