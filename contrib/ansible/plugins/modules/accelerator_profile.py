# SPDX-License-Identifier: Apache-2.0
"""Device profiles."""

from __future__ import annotations

DOCUMENTATION = """
module: accelerator_profile
short_description: Make, change or delete a device profile
description:
  - A device profile says what a server may ask for.
  - A profile that is in use keeps its groups, unless the server permits the change.
extends_documentation_fragment: [cyborg.accelerator.accelerator]
options:
  name:
    description: Its name. No two profiles have the same.
    type: str
    required: true
  groups:
    description: What it asks for, a dictionary each deployable. Needed unless state is absent.
    type: list
    elements: dict
  description:
    description: A text for people.
    type: str
  projects:
    description: The ids of the projects that may use it. Without them it is public.
    type: list
    elements: str
  extra:
    description: Texts under names, for people. Unless given, they stay as they are.
    type: dict
  enabled:
    description: Whether new requests for it are permitted.
    type: bool
    default: true
  state:
    description: Whether it shall be there.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = """
- cyborg.accelerator.accelerator_profile:
    name: aes
    groups:
      - resources:FPGA: "1"
        accel:function_id: aes-128
"""

RETURN = """
result:
  description: The profile as it is, or would be.
  type: dict
  returned: unless it is absent
"""

from ansible.module_utils.basic import AnsibleModule  # noqa: E402 - Ansible wants them here
from ansible_collections.cyborg.accelerator.plugins.module_utils import (  # noqa: E402
    accelerator as shared,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **shared.ARGUMENTS,
            "name": {"type": "str", "required": True},
            "groups": {"type": "list", "elements": "dict"},
            "description": {"type": "str"},
            "projects": {"type": "list", "elements": "str"},
            "extra": {"type": "dict"},
            "enabled": {"type": "bool", "default": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["groups"])],
        supports_check_mode=True,
    )

    def work(api: shared.Api) -> tuple[shared.Fields | None, bool, shared.Fields | None]:
        given = module.params
        before = api.find("device_profiles", name=given["name"])
        projects = sorted(set(given["projects"] or ()))
        # A request without them would take them away.
        extra = (before or {}).get("extra", {}) if given["extra"] is None else given["extra"]
        wanted = {
            "name": given["name"],
            "description": given["description"],
            # A request says numbers as text, and the answer too.
            "groups": [
                {key: str(value) for key, value in group.items()} for group in given["groups"] or ()
            ],
            "visibility": "private" if projects else "public",
            "projects": projects,
            "extra": {key: str(text) for key, text in extra.items()},
        }
        changed, after = shared.keep(api, module, "device_profiles", before, wanted)
        if after is not None and after.get("enabled", True) != given["enabled"]:
            changed = True
            if not module.check_mode:
                action = "enable" if given["enabled"] else "disable"
                api.call("POST", f"/device_profiles/{after['uuid']}/{action}")
            after = {**after, "enabled": given["enabled"]}
        return before, changed, after

    shared.run(module, work)


if __name__ == "__main__":
    main()
