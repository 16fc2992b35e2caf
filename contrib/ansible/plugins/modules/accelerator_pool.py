# SPDX-License-Identifier: Apache-2.0
"""Function pools."""

from __future__ import annotations

DOCUMENTATION = """
module: accelerator_pool
short_description: Make, change or delete a function pool
description:
  - A function pool keeps free slots of a function of FPGAs, which are programmed ahead of demand.
extends_documentation_fragment: [cyborg.accelerator.accelerator]
options:
  name:
    description: Its name. No two pools have the same.
    type: str
    required: true
  function_id:
    description: The function. Needed unless state is absent.
    type: str
  free:
    description: The slots that are to be free. Needed unless state is absent.
    type: int
  max_devices:
    description: The most deployables that may run it. Needed unless state is absent.
    type: int
  description:
    description: A text for people.
    type: str
  image_uuid:
    description: The image to write. Without it the newest one.
    type: str
  hosts:
    description: A pattern of host names. Without it every host.
    type: str
  traits:
    description: The traits that a deployable must have.
    type: list
    elements: str
    default: []
  state:
    description: Whether it shall be there.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = """
- cyborg.accelerator.accelerator_pool:
    name: aes
    function_id: aes-128
    free: 4
    max_devices: 8
"""

RETURN = """
result:
  description: The pool as it is, or would be.
  type: dict
  returned: unless it is absent
"""

from ansible.module_utils.basic import AnsibleModule  # noqa: E402 - Ansible wants them here
from ansible_collections.cyborg.accelerator.plugins.module_utils import (  # noqa: E402
    accelerator as shared,
)

_FIELDS = ("function_id", "free", "max_devices", "description", "image_uuid", "hosts", "traits")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **shared.ARGUMENTS,
            "name": {"type": "str", "required": True},
            "function_id": {"type": "str"},
            "free": {"type": "int"},
            "max_devices": {"type": "int"},
            "description": {"type": "str"},
            "image_uuid": {"type": "str"},
            "hosts": {"type": "str"},
            "traits": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["function_id", "free", "max_devices"])],
        supports_check_mode=True,
    )

    def work(api: shared.Api) -> tuple[shared.Fields | None, bool, shared.Fields | None]:
        given = module.params
        before = api.find("function_pools", name=given["name"])
        wanted = {"name": given["name"], **{name: given[name] for name in _FIELDS}}
        # As an answer has them.
        wanted["traits"] = sorted(set(given["traits"]))
        changed, after = shared.keep(api, module, "function_pools", before, wanted)
        return before, changed, after

    shared.run(module, work)


if __name__ == "__main__":
    main()
