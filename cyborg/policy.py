# SPDX-License-Identifier: Apache-2.0
"""Policy enforcement: one enforcer per application, made from its configuration."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any

from oslo_config import cfg
from oslo_policy import opts as policy_opts
from oslo_policy import policy

from cyborg import errors, policies
from cyborg.policies import base

LOG = logging.getLogger(__name__)


class UnreadableRules(Exception):
    """The operator's policy file cannot be read."""


class Enforcer:
    """Enforces the default rules and the operator's policy file, which it reads again on change.

    The defaults are upstream's new ones. No rule has a deprecated one, so
    ``[oslo_policy] enforce_new_defaults`` has no effect.

    :raises UnreadableRules: the file cannot be read. If that happens later, the last rules stay
    """

    def __init__(self, conf: cfg.ConfigOpts, *, service_token_roles: Collection[str]) -> None:
        policy_opts.set_defaults(conf, policy_file="policy.yaml")
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.register_defaults(policies.list_rules())
        self._reading = threading.Lock()
        self._service_token_roles = frozenset(service_token_roles)
        try:
            self._enforcer.load_rules()
        except Exception as exc:
            # Errors of the YAML parser, or of rules that are lists, numbers and so on.
            path = self._enforcer.policy_path
            raise UnreadableRules(f"Policy file {path} cannot be read: {exc}") from exc

    def authorize(
        self, rule: str, target: Mapping[str, Any], credentials: Mapping[str, Any]
    ) -> None:
        """Return if ``rule`` permits it.

        :raises Forbidden: it does not, or the token is not scoped to a project
        """
        if not self._permits(rule, target, credentials):
            raise errors.Forbidden(f"Access was denied to the following resource: {rule}")

    def is_admin(self, credentials: Mapping[str, Any]) -> bool:
        """Whether the caller administers the cloud, and so acts on the objects of every project."""
        return self._permits(base.IS_ADMIN, credentials, credentials)

    def _permits(
        self, rule: str, target: Mapping[str, Any], credentials: Mapping[str, Any]
    ) -> bool:
        # oslo.policy treats a token without a scope like one for a project.
        if not credentials.get("project_id"):
            return False
        self._read_again_if_changed()
        try:
            return self._enforcer.authorize(rule, dict(target), dict(credentials))
        except policy.InvalidScope:
            return False
        except Exception:
            # For example a rule that refers to itself, or whose HTTP server does not answer.
            LOG.exception("Policy rule %s cannot be evaluated, so access is denied", rule)
            return False

    def _read_again_if_changed(self) -> None:
        # Without the lock other threads would use half of the rules while one thread reads them.
        with self._reading:
            try:
                self._enforcer.load_rules()
            except Exception:
                LOG.exception("The policy file cannot be read; the rules stay as they were")

    def is_service(self, roles: Collection[str]) -> bool:
        """Whether a service token with these roles is another service's."""
        return not self._service_token_roles.isdisjoint(roles)
