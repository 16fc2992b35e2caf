# SPDX-License-Identifier: Apache-2.0
"""A process with Nova in it: one call a line of standard input, one answer a line of output.

Nova keeps its options in the one global configuration, and so do other services that tests run, so
it gets a process of its own. A call is a JSON list of a name and arguments. Names are those of
Nova's client class and of the functions of its module, and besides ``configure`` and ``public``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import nova.conf
from nova import context, objects
from nova.accelerator import cyborg

_FUNCTIONS = (
    cyborg.get_arq_pci_device_profile,
    cyborg.get_device_amount_of_dp_groups,
    cyborg.get_device_profile_group_requester_id,
)


class Nova:
    """A user's request in Nova, and the client that Nova makes for it."""

    def configure(self, options: dict[str, dict[str, Any]], user: dict[str, str]) -> None:
        """Let the next calls be made for ``user``, with these groups of options in nova.conf."""
        for group, values in options.items():
            for name, value in values.items():
                nova.conf.CONF.set_override(name, value, group=group)
        self._context = context.RequestContext(**user)
        self._client = cyborg.get_client(self._context)

    def public(self) -> list[str]:
        """What the class offers to the rest of Nova."""
        return [name for name in dir(self._client) if not name.startswith("_")]

    def answer(self, name: str, arguments: list[Any]) -> Any:
        """Make one call."""
        known: dict[str, Callable[..., Any]] = {
            "configure": self.configure,
            "public": self.public,
            "get_device_profile_request_groups": self._profile_groups,
            "get_device_request_groups": self._request_groups,
            "get_arq_uuids_for_instance": self._uuids,
            "resolved": self._resolved,
            **{function.__name__: function for function in _FUNCTIONS},
        }
        return (known.get(name) or getattr(self._client, name))(*arguments)

    def _profile_groups(self, *arguments: Any) -> list[dict[str, Any]]:
        groups = cyborg.get_device_profile_request_groups(self._context, *arguments)
        return [_plain(group) for group in groups]

    def _request_groups(self, *arguments: Any) -> list[dict[str, Any]]:
        return [_plain(group) for group in self._client.get_device_request_groups(*arguments)]

    def _uuids(self, instance: str) -> Any:
        return self._client.get_arq_uuids_for_instance(objects.Instance(uuid=instance))

    def _resolved(self, instance: str) -> list[Any]:
        """What ``only_resolved`` asked for in releases of Nova that left the choice to Cyborg."""
        query = {"instance": instance, "bind_state": "resolved"}
        answer, error = self._client._call_cyborg("get", self._client.ARQ_URL, params=query)
        return [answer.status_code, error, answer.json().get("arqs")]


def _plain(group: Any) -> dict[str, Any]:
    return {
        "requester_id": group.requester_id,
        "resources": group.resources,
        "required_traits": sorted(group.required_traits),
        "forbidden_traits": sorted(group.forbidden_traits),
    }


def main() -> None:
    """Answer until the input ends."""
    nova.conf.CONF([], project="nova", default_config_files=[], default_config_dirs=[])
    objects.register_all()
    one = Nova()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"value": one.answer(name, arguments)}
        except Exception as exc:  # noqa: BLE001 - the test is told
            answer = {"error": type(exc).__name__, "sentence": str(exc)}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
