# SPDX-License-Identifier: Apache-2.0
"""Requests to the accelerator API by openstacksdk, and the end of a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

try:
    import openstack
    from openstack import exceptions, utils

    HAS_SDK = True
except ImportError:
    HAS_SDK = False

#: The microversion at which requests are sent; and what the modules need of the server.
MICROVERSION = "2.4"

ARGUMENTS: dict[str, Any] = {"cloud": {"type": "str"}}

Fields = dict[str, Any]


class Refused(Exception):
    """What the server says, as a sentence."""


class Api:
    """The accelerator API."""

    def __init__(self, cloud: str | None) -> None:
        self._proxy = openstack.connect(cloud=cloud).accelerator
        if utils.maximum_supported_microversion(self._proxy, MICROVERSION) != MICROVERSION:
            raise Refused(f"The server does not know microversion {MICROVERSION}.")

    def call(self, method: str, path: str, body: Fields | None = None) -> Any:
        """The document of the answer; None if it has none."""
        more = {} if body is None else {"json": body}
        response = self._proxy.request(path, method, microversion=MICROVERSION, **more)
        exceptions.raise_from_response(response)
        return response.json() if response.content else None

    def find(self, collection: str, **query: str) -> Fields | None:
        """The first of a collection that fits, if there is one."""
        response = self._proxy.get(f"/{collection}", params=query, microversion=MICROVERSION)
        exceptions.raise_from_response(response)
        found: list[Fields] = response.json()[collection]
        return found[0] if found else None


def differs(there: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether anything that is wanted is not so."""
    return there is None or any(there.get(name) != value for name, value in wanted.items())


def keep(
    api: Api, module: AnsibleModule, collection: str, there: Fields | None, wanted: Fields
) -> tuple[bool, Fields | None]:
    """Make, change or delete what is ``there``, as wanted; whether that changed it."""
    path = f"/{collection}/{there['uuid']}" if there else f"/{collection}"
    if module.params["state"] == "absent":
        if there and not module.check_mode:
            api.call("DELETE", path)
        return there is not None, None
    if not differs(there, wanted):
        return False, there
    if module.check_mode:
        return True, {**(there or {}), **wanted}
    # A request leaves out what an answer has as null.
    sent = {name: value for name, value in wanted.items() if value is not None}
    return True, api.call("PUT" if there else "POST", path, sent)


def run(
    module: AnsibleModule, work: Callable[[Api], tuple[Fields | None, bool, Fields | None]]
) -> None:
    """Do the work, and end the module with what was there, whether it changed, and what is."""
    if not HAS_SDK:
        module.fail_json(msg="openstacksdk is not installed where this module runs.")
    try:
        before, changed, after = work(Api(module.params["cloud"]))
    except exceptions.HttpException as exc:
        module.fail_json(msg=f"{exc.details or exc} (request {exc.request_id})")
    except (Refused, exceptions.SDKException) as exc:
        module.fail_json(msg=str(exc))
    else:
        diff = {"before": before or {}, "after": after or {}} if changed else {}
        module.exit_json(changed=changed, result=after, diff=diff)
