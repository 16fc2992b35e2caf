# SPDX-License-Identifier: Apache-2.0
"""Who calls, in tests that call the rooms themselves."""

from __future__ import annotations

from cyborg.policy import context
from cyborg.policy.enforcer import Enforcer


def admin(enforcer: Enforcer, *, project_id: str) -> context.RequestContext:
    """An administrator with every role in ``project_id``, and with a service token."""
    return context.RequestContext(
        enforcer=enforcer,
        user_id="admin",
        project_id=project_id,
        roles=["admin", "manager", "member", "reader", "service"],
        service_roles=["service"],
    )
