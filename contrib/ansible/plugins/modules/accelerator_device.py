# SPDX-License-Identifier: Apache-2.0
"""The state of devices."""

from __future__ import annotations

DOCUMENTATION = """
module: accelerator_device
short_description: Take a device out of service, or keep most servers away from it
description:
  - A server that has the device keeps it.
extends_documentation_fragment: [cyborg.accelerator.accelerator]
options:
  device:
    description: The uuid of the device, or the name of one of its deployables.
    type: str
    required: true
  enabled:
    description: Whether it is given to servers. Unless given, that stays as it is.
    type: bool
  tainted:
    description: Whether only profiles that tolerate a taint get it. Unless given, that stays.
    type: bool
  reason:
    description: Why, for people. It does not count as a change by itself.
    type: str
"""

EXAMPLES = """
- cyborg.accelerator.accelerator_device:
    device: node-1_0000:3b:00.0
    enabled: false
    reason: fan replaced
"""

RETURN = """
result:
  description: The device as it is, or would be.
  type: dict
  returned: success
"""

import uuid  # noqa: E402 - Ansible wants what it reads first

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible_collections.cyborg.accelerator.plugins.module_utils import (  # noqa: E402
    accelerator as shared,
)


def _device(api: shared.Api, text: str) -> shared.Fields:
    """The device of this uuid, or the one that has the deployable of this name."""
    try:
        name = str(uuid.UUID(text))
    except ValueError:
        deployable = api.find("deployables", name=text)
        if deployable is None:
            raise shared.Refused(f"No deployable has the name '{text}'.") from None
        name = deployable["device_uuid"]
    found: shared.Fields = api.call("GET", f"/devices/{name}")
    return found


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **shared.ARGUMENTS,
            "device": {"type": "str", "required": True},
            "enabled": {"type": "bool"},
            "tainted": {"type": "bool"},
            "reason": {"type": "str"},
        },
        supports_check_mode=True,
    )

    def work(api: shared.Api) -> tuple[shared.Fields | None, bool, shared.Fields | None]:
        given = module.params
        before = _device(api, given["device"])
        is_now = {"enabled": before["status"] == "enabled", "tainted": before["tainted"]}
        actions = {
            "enabled": {True: "enable", False: "disable"},
            "tainted": {True: "taint", False: "untaint"},
        }
        changes = [
            actions[name][given[name]]
            for name in actions
            if given[name] is not None and given[name] != is_now[name]
        ]
        after = before
        for action in () if module.check_mode else changes:
            with_reason = given["reason"] is not None and action in {"disable", "taint"}
            body = {"reason": given["reason"]} if with_reason else None
            api.call("POST", f"/devices/{before['uuid']}/{action}", body)
            after = api.call("GET", f"/devices/{before['uuid']}")
        return before, bool(changes), after

    shared.run(module, work)


if __name__ == "__main__":
    main()
