# SPDX-License-Identifier: Apache-2.0
"""The request context: who asks, and what the policy lets that caller do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_context import context as oslo_context

from cyborg import errors, policy


class RequestContext(oslo_context.RequestContext):
    """Identity of one request together with the enforcer that judges it."""

    def __init__(self, *, enforcer: policy.Enforcer, **identity: Any) -> None:
        # Without a value given, oslo.context asks check_is_admin.
        super().__init__(is_admin=None, **identity)
        self._enforcer = enforcer

    def authorize(self, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Return when ``rule`` permits the caller to act on ``target``.

        Without a target the caller's own project is meant: from what others own the caller is
        kept by :attr:`project_scope`.

        :raises Forbidden: the rule does not permit it
        """
        own = {"project_id": self.project_id, "user_id": self.user_id}
        self._enforcer.authorize(rule, own if target is None else target, self.to_policy_values())

    def may(self, rule: str) -> bool:
        """Whether ``rule`` permits the caller what is the whole cloud's."""
        try:
            self.authorize(rule)
        except errors.Forbidden:
            return False
        return True

    def check_is_admin(self) -> bool:
        """Whether the caller administers the cloud and so acts on every project's objects."""
        return self._enforcer.is_admin(self.to_policy_values())

    @property
    def project_scope(self) -> str | None:
        """The project whose objects the caller may see and change; None means every project's."""
        if self.is_admin:
            return None
        # A caller without a project must not become one without bounds.
        return self.project_id or ""

    @property
    def has_service_token(self) -> bool:
        """Whether another service vouches for the request, as binding needs."""
        return self._enforcer.is_service(self.service_roles)


def from_environ(environ: Mapping[str, Any], enforcer: policy.Enforcer) -> RequestContext:
    """The context that the headers set by keystonemiddleware describe."""
    return RequestContext.from_environ(dict(environ), enforcer=enforcer)


def admin(enforcer: policy.Enforcer, *, project_id: str) -> RequestContext:
    """An administrator of every role who acts in ``project_id`` with a service token."""
    return RequestContext(
        enforcer=enforcer,
        user_id="admin",
        project_id=project_id,
        roles=["admin", "manager", "member", "reader", "service"],
        service_roles=["service"],
    )
