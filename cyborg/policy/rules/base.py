# SPDX-License-Identifier: Apache-2.0
"""Base rules from which the policy rules are made, named as upstream names them.

A rule checks exactly the role it names. It is Keystone that lets member imply reader, and so on.
"""

from __future__ import annotations

from oslo_policy import policy

ADMIN = "rule:admin_api"
IS_ADMIN = "is_admin"
ADMIN_OR_SERVICE = "rule:admin_api or rule:service_api"
PROJECT_READER_OR_ADMIN = "rule:project_reader_or_admin"
PROJECT_MANAGER_OR_ADMIN = "rule:project_manager_or_admin"
PROJECT_MEMBER = "rule:project_member_api"
PROJECT_MEMBER_OR_SERVICE = "rule:project_member_or_service"

#: Tokens for the system or a domain are refused: every resource belongs to a project or to the
#: administrators of the cloud, who use a project too.
SCOPE_TYPES = ["project"]


def _in_project(role: str) -> policy.RuleDefault:
    check = f"role:{role} and project_id:%(project_id)s"
    return policy.RuleDefault(f"project_{role}_api", check, f"Has the role {role} in the project.")


def _either(name: str, *rules: str) -> policy.RuleDefault:
    check = " or ".join(f"rule:{rule}" for rule in rules)
    return policy.RuleDefault(name, check, f"Permits callers whom {' or '.join(rules)} permits.")


#: The base rules; a policy file may redefine each of them.
RULES = [
    policy.RuleDefault("admin_api", "role:admin", "Administrator of the cloud."),
    policy.RuleDefault("service_api", "role:service", "Another OpenStack service."),
    *map(_in_project, ("admin", "manager", "member", "reader")),
    _either("project_manager_or_admin", "project_manager_api", "admin_api"),
    _either("project_member_or_admin", "project_member_api", "admin_api"),
    _either("project_reader_or_admin", "project_reader_api", "admin_api"),
    _either("project_member_or_service", "project_member_api", "service_api"),
    policy.RuleDefault(
        IS_ADMIN, ADMIN, "Acts on every project's objects, if the request's rule permits it."
    ),
]
_OWNER, _USER = "project_id:%(project_id)s", "user_id:%(user_id)s"
# None of ours uses these, but an operator's policy file may refer to them.
RULES += [
    policy.RuleDefault("public_api", "is_public_api:True", "Permits no caller."),
    policy.RuleDefault("allow", "@", "Permits each caller with a token for a project."),
    policy.RuleDefault("deny", "!", "Permits no caller."),
    policy.RuleDefault(
        "admin_or_owner", f"{ADMIN} or {_OWNER}", "Administrator, or any role in the project."
    ),
    policy.RuleDefault("admin_or_user", f"{ADMIN} or {_USER}", "Administrator or that user."),
    policy.RuleDefault("default", ADMIN, "Applies to a rule that is not defined."),
]


class Rules(list[policy.DocumentedRuleDefault]):
    """The rules of one resource, whose names and paths begin alike."""

    def __init__(self, prefix: str, collection: str) -> None:
        super().__init__()
        self._prefix, self._collection = prefix, collection

    def add(self, name: str, check: str, description: str, *operations: str) -> str:
        """Add a rule for operations, each an HTTP method and the rest of a path; give its name."""
        asked = [operation.partition(" ") for operation in operations]
        rule = policy.DocumentedRuleDefault(
            name=f"{self._prefix}:{name}",
            check_str=check,
            description=description,
            operations=[{"method": way, "path": self._collection + rest} for way, _, rest in asked],
            scope_types=SCOPE_TYPES,
        )
        self.append(rule)
        return str(rule.name)
