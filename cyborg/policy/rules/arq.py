# SPDX-License-Identifier: Apache-2.0
"""Policy rules of accelerator requests.

They decide who may act; the caller's project decides on which requests, in SQL. To bind, to
unbind, and to delete a bound request also takes a service token.
"""

from __future__ import annotations

from cyborg.policy.rules.base import (
    ADMIN,
    PROJECT_MEMBER,
    PROJECT_MEMBER_OR_SERVICE,
    PROJECT_READER_OR_ADMIN,
    Rules,
)

RULES = Rules("cyborg:arq", "/v2/accelerator_requests")
GET_ALL = RULES.add(
    "get_all",
    PROJECT_READER_OR_ADMIN,
    "List the accelerator requests of your project, or all as an administrator.",
    "GET",
)
GET_ONE = RULES.add(
    "get_one",
    PROJECT_READER_OR_ADMIN,
    "Show an accelerator request.",
    "GET /{accelerator_request_uuid}",
)
GET_ACCESS_KEY = RULES.add(
    "get_access_key",
    PROJECT_MEMBER,
    "Show the access key of an accelerator request of your own project.",
    "GET /{accelerator_request_uuid}/access_key",
)
CREATE = RULES.add(
    "create",
    PROJECT_MEMBER_OR_SERVICE,
    "Create the accelerator requests of a device profile.",
    "POST",
)
UPDATE = RULES.add(
    "update", PROJECT_MEMBER_OR_SERVICE, "Bind and unbind accelerator requests.", "PATCH"
)
DELETE = RULES.add(
    "delete",
    PROJECT_MEMBER_OR_SERVICE,
    "Delete accelerator requests.",
    "DELETE /{accelerator_request_uuid}",
    "DELETE ?arqs={accelerator_request_uuids}",
    "DELETE ?instance={instance_uuid}",
)
RELEASE = RULES.add(
    "release",
    ADMIN,
    "Release an accelerator request's attach handle without waiting for its host step.",
    "POST /{accelerator_request_uuid}/release",
)
