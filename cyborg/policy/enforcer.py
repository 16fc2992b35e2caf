# SPDX-License-Identifier: Apache-2.0
"""Policy enforcement: one enforcer per application, made from its configuration."""

from __future__ import annotations

import logging
import pathlib
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from oslo_config import cfg
from oslo_policy import _checks as policy_checks
from oslo_policy import opts as policy_opts
from oslo_policy import policy

from cyborg.common import errors, faster
from cyborg.policy import rules as own_rules
from cyborg.policy.rules import base

LOG = logging.getLogger(__name__)

#: Seconds between two looks for policy files that were not there before.
_FIND_SECONDS = 1.0


class UnreadableRules(errors.Misconfigured):
    """The operator's policy file cannot be read."""


class Enforcer:
    """Enforces the default rules and the operator's policy file, which it reads again on change.

    The defaults are upstream's new ones. No rule has a deprecated one, so
    ``[oslo_policy] enforce_new_defaults`` has no effect.

    :raises UnreadableRules: the file cannot be read. If that happens later, the last rules stay
    """

    def __init__(self, conf: cfg.ConfigOpts, *, service_token_roles: Collection[str]) -> None:
        faster.inspect_checks_once(policy_checks)
        policy_opts.set_defaults(conf, policy_file="policy.yaml")
        self._conf = conf
        self._service_token_roles = frozenset(service_token_roles)
        self._reading = threading.Lock()
        self._paths: dict[pathlib.Path, None] = {}
        self._find_files()
        #: What was seen of the files before they were read; None if one is gone.
        self._read: tuple[tuple[int, ...], ...] | None = _signature(self._paths)
        self._rules = _read_rules(conf)

    def authorize(
        self, rule: str, target: Mapping[str, Any], credentials: Mapping[str, Any]
    ) -> None:
        """Raise Forbidden if ``rule`` does not permit it, or the token is not of a project."""
        if not self._allows(rule, target, credentials):
            raise errors.Forbidden(f"Access was denied to the following resource: {rule}")

    def is_admin(self, credentials: Mapping[str, Any]) -> bool:
        """True if the caller administers the cloud, and so acts on the objects of every project."""
        return self._allows(base.IS_ADMIN, credentials, credentials)

    def _allows(
        self, rule: str, target: Mapping[str, Any], credentials: Mapping[str, Any]
    ) -> bool:
        # oslo.policy treats a token without a scope like one for a project.
        if not credentials.get("project_id"):
            return False
        self._read_again_if_changed()
        try:
            return self._rules.authorize(rule, dict(target), dict(credentials))
        except policy.InvalidScope:
            return False
        except Exception:
            # For example a rule that refers to itself, or whose HTTP server does not answer.
            LOG.exception("Policy rule %s cannot be evaluated, so access is denied", rule)
            return False

    def _read_again_if_changed(self) -> None:
        if time.monotonic() >= self._next_find:
            self._find_files()
        # While one thread reads, the others go on with the rules as they were.
        if self._is_changed() and self._reading.acquire(blocking=False):
            try:
                self._read_again()
            finally:
                self._reading.release()

    def _is_changed(self) -> bool:
        try:
            return _signature(self._paths) != self._read
        except OSError:
            # Gone, perhaps for a moment while an editor replaces it.
            return self._read is not None

    def _read_again(self) -> None:
        self._read = None
        try:
            self._read = _signature(self._paths)
            self._rules = _read_rules(self._conf)
        except Exception:
            LOG.exception("The policy file cannot be read; the rules stay as they were")

    def _find_files(self) -> None:
        """Look for files that were not there before, which takes long compared to a decision."""
        options = self._conf.oslo_policy
        names = (options.policy_file, *options.policy_dirs)
        found = (self._conf.find_file(name) for name in names)
        # One that was there and is gone must not be forgotten: its rules stay.
        self._paths |= dict.fromkeys(pathlib.Path(path) for path in found if path)
        self._next_find = time.monotonic() + _FIND_SECONDS

    def is_service(self, roles: Collection[str]) -> bool:
        """True if a service token with these roles is another service's."""
        return not self._service_token_roles.isdisjoint(roles)


def _read_rules(conf: cfg.ConfigOpts) -> policy.Enforcer:
    """The rules as the files have them now; they never change, so threads need no lock.

    :raises UnreadableRules: a file cannot be read
    """
    rules = policy.Enforcer(conf)
    rules.register_defaults(own_rules.list_rules())
    try:
        rules.load_rules()
    except Exception as exc:
        # Errors of the YAML parser, or of rules that are lists, numbers and so on.
        path = rules.policy_path
        raise UnreadableRules(f"Policy file {path} cannot be read: {exc}") from exc
    # It would look at the files again at each decision.
    rules.use_conf = False
    return rules


def _signature(paths: Iterable[pathlib.Path]) -> tuple[tuple[int, ...], ...]:
    """A signature that changes with one of the files, or with a file in one of the folders.

    :raises OSError: one is gone
    """
    return tuple(
        (seen.st_ino, seen.st_size, seen.st_mtime_ns)
        for path in paths
        for seen in (each.stat() for each in (path, *_files_in(path)))
    )


def _files_in(path: pathlib.Path) -> Iterable[pathlib.Path]:
    return sorted(path.iterdir()) if path.is_dir() else ()
