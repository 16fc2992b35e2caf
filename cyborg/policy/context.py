# SPDX-License-Identifier: Apache-2.0
"""The request context: who the caller is, and what the policy allows that caller."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from oslo_context import context as oslo_context

from cyborg.common import errors
from cyborg.peers import answers
from cyborg.policy.enforcer import Enforcer
from cyborg.policy.rules import host


class RequestContext(oslo_context.RequestContext):
    """The caller of one request, together with the policy enforcer."""

    #: What its calls to other services take a place of.
    places: answers.Places | None = None

    def __init__(self, *, enforcer: Enforcer, **identity: Any) -> None:
        # With None, oslo.context calls check_is_admin.
        super().__init__(is_admin=None, **identity)
        self._enforcer = enforcer

    def authorize(self, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Raise Forbidden if ``rule`` does not permit the caller ``target``, or its own project.

        It is :attr:`project_scope` that keeps a caller from the objects of other projects.
        """
        own = {"project_id": self.project_id, "user_id": self.user_id}
        self._enforcer.authorize(rule, own if target is None else target, self._credentials)

    def may(self, rule: str) -> bool:
        """True if ``rule`` allows the caller to act on objects that belong to no project."""
        try:
            self.authorize(rule)
        except errors.Forbidden:
            return False
        return True

    def check_is_admin(self) -> bool:
        """True if the caller administers the cloud, and so acts on the objects of every project."""
        return self._enforcer.is_admin(self._credentials)

    @functools.cached_property
    def sees_hosts(self) -> bool:
        """True if the caller may see hosts, and so paths and what belongs to other projects."""
        return self.may(host.GET_ONE)

    @functools.cached_property
    def _credentials(self) -> Mapping[str, Any]:
        """The caller as rules know it, which stays the same for the whole request."""
        return dict(self.to_policy_values())

    @property
    def project_scope(self) -> str | None:
        """The project whose objects the caller may see and change; None for all projects."""
        if self.is_admin:
            return None
        # A caller without a project must not become one for all projects.
        return self.project_id or ""

    @property
    def has_service_token(self) -> bool:
        """True if the request carries another service's token, as binding requires."""
        return self._enforcer.is_service(self.service_roles)


def from_environ(environ: Mapping[str, Any], enforcer: Enforcer) -> RequestContext:
    """The context from the headers that keystonemiddleware sets."""
    return RequestContext.from_environ(dict(environ), enforcer=enforcer)
