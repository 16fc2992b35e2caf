# SPDX-License-Identifier: Apache-2.0
"""Policy rules of accelerator requests.

They decide who may act; the caller's project decides on which requests, in SQL. To bind, to
unbind, and to delete a bound request also takes a service token.
"""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:arq:get_all"
GET_ONE = "cyborg:arq:get_one"
GET_ACCESS_KEY = "cyborg:arq:get_access_key"
CREATE = "cyborg:arq:create"
UPDATE = "cyborg:arq:update"
DELETE = "cyborg:arq:delete"
RELEASE = "cyborg:arq:release"

_COLLECTION = "/v2/accelerator_requests"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(
            GET_ALL,
            base.PROJECT_READER_OR_ADMIN,
            "List the accelerator requests of your project, or all as an administrator.",
            ("GET", _COLLECTION),
        ),
        base.rule(
            GET_ONE,
            base.PROJECT_READER_OR_ADMIN,
            "Show an accelerator request.",
            ("GET", f"{_COLLECTION}/{{accelerator_request_uuid}}"),
        ),
        base.rule(
            GET_ACCESS_KEY,
            base.PROJECT_MEMBER,
            "Show the access key of an accelerator request of your own project.",
            ("GET", f"{_COLLECTION}/{{accelerator_request_uuid}}/access_key"),
        ),
        base.rule(
            CREATE,
            base.PROJECT_MEMBER_OR_SERVICE,
            "Create the accelerator requests of a device profile.",
            ("POST", _COLLECTION),
        ),
        base.rule(
            UPDATE,
            base.PROJECT_MEMBER_OR_SERVICE,
            "Bind and unbind accelerator requests.",
            ("PATCH", _COLLECTION),
        ),
        base.rule(
            DELETE,
            base.PROJECT_MEMBER_OR_SERVICE,
            "Delete accelerator requests.",
            ("DELETE", f"{_COLLECTION}/{{accelerator_request_uuid}}"),
            ("DELETE", f"{_COLLECTION}?arqs={{accelerator_request_uuids}}"),
            ("DELETE", f"{_COLLECTION}?instance={{instance_uuid}}"),
        ),
        base.rule(
            RELEASE,
            base.ADMIN,
            "Release an accelerator request's attach handle without waiting for its host step.",
            ("POST", f"{_COLLECTION}/{{accelerator_request_uuid}}/release"),
        ),
    ]
