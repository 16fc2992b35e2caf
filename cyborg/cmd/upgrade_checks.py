# SPDX-License-Identifier: Apache-2.0
"""The checks of ``cyborg-status upgrade check``, made before this release is started."""

from __future__ import annotations

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_policy import policy
from oslo_upgradecheck import common_checks, upgradecheck

from cyborg import conf as cyborg_conf
from cyborg import db, rpc
from cyborg.api import app
from cyborg.cmd import known_options
from cyborg.common import errors
from cyborg.db import revision, schema
from cyborg.policy import rules

SUCCESS = upgradecheck.Code.SUCCESS
WARNING = upgradecheck.Code.WARNING
FAILURE = upgradecheck.Code.FAILURE


class Checks(upgradecheck.UpgradeCommands):
    """The checks, in the order of :attr:`_upgrade_checks`."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self.conf = conf

    def schema(self) -> upgradecheck.Result:
        """Find the database without the schema of this release."""
        try:
            db.configure(self.conf)
            revision.check_not_foreign()
            found = revision.version()
        except errors.ServiceUnavailable as exc:
            return upgradecheck.Result(FAILURE, str(exc))
        except (db_exc.DBError, sa.exc.SQLAlchemyError) as exc:
            # The driver's message may contain the URL with its password.
            sentence = f"The database does not answer ({type(exc).__name__})."
            return upgradecheck.Result(FAILURE, sentence)
        if found == schema.head():
            return upgradecheck.Result(SUCCESS, "The schema is that of this release.")
        if found is None or schema.knows(found):
            sentence = (
                f"The schema is at revision {found or 'none'}, and this release needs "
                f"{schema.head()}: run `cyborg-dbsync upgrade`."
            )
        else:
            sentence = f"The schema is at revision {found}, which this release does not know."
        return upgradecheck.Result(FAILURE, sentence)

    def options(self) -> upgradecheck.Result:
        """Find options and files without an effect."""
        found = [*cyborg_conf.meaningless(self.conf), *known_options.unread(self.conf)]
        found += cyborg_conf.passed_over(self.conf)
        if not self.conf.oslo_policy.enforce_new_defaults:
            found.append("[oslo_policy] enforce_new_defaults = false has no effect.")
        told = " ".join(found) or "Every option that is set has an effect."
        return upgradecheck.Result(WARNING if found else SUCCESS, told)

    def paste_file(self) -> upgradecheck.Result:
        """Find an operator's own paste file that does not work with this release."""
        path = app.paste_file(self.conf)
        if app.is_of_another_cyborg(path):
            sentence = f"The paste file {path} is that of another Cyborg and is passed over."
            return upgradecheck.Result(WARNING, sentence)
        if app.is_usable(path, self.conf.api.auth_strategy):
            return upgradecheck.Result(SUCCESS, f"The paste file {path} fits this release.")
        sentence = (
            f"The paste file {path} has no pipeline {self.conf.api.auth_strategy}, so it does not "
            f"work with this release: remove it, or write it again from {app.SHIPPED_PASTE_FILE}."
        )
        return upgradecheck.Result(FAILURE, sentence)

    def policy_rules(self) -> upgradecheck.Result:
        """Find rules of the policy file that nothing asks for."""
        enforcer = policy.Enforcer(self.conf)
        enforcer.register_defaults(rules.list_rules())
        try:
            enforcer.load_rules()
        except Exception as exc:  # noqa: BLE001 - it is told
            # Errors of the YAML parser, or of rules that are lists, numbers and so on.
            return upgradecheck.Result(FAILURE, f"The policy file cannot be read: {exc}")
        known = {rule.name for rule in rules.list_rules()}
        sentences = [
            f"Rule {name} is none of this release: it matters only to rules of your own file."
            for name in enforcer.file_rules
            if name not in known
        ]
        told = " ".join(sentences) or "The policy file has no unknown rules."
        return upgradecheck.Result(WARNING if sentences else SUCCESS, told)

    def rpc_pins(self) -> upgradecheck.Result:
        """Find messages pinned to an older or an unknown version."""
        pins = {name: self.conf.upgrade_levels[name] for name in ("agent", "conductor")}
        pinned = {name: pin for name, pin in pins.items() if pin not in {None, rpc.VERSION}}
        if not pinned:
            return upgradecheck.Result(SUCCESS, "No message is pinned to an older version.")
        named = ", ".join(f"{name} = {pin}" for name, pin in pinned.items())
        if all(_is_older(pin) for pin in pinned.values()):
            sentence = (
                f"[upgrade_levels] {named}: once every service runs this release, whose version is "
                f"{rpc.VERSION}, remove the pins and restart the services."
            )
            return upgradecheck.Result(WARNING, sentence)
        sentence = f"[upgrade_levels] {named}: this release knows only {rpc.VERSION}."
        return upgradecheck.Result(FAILURE, sentence)

    def policy_file(self) -> upgradecheck.Result:
        """Find a policy file that is no YAML."""
        found = common_checks.check_policy_json(self, self.conf)
        found.details = found.details or "The policy file is not JSON."
        return found

    _upgrade_checks = (
        ("Database schema", schema),
        ("Policy file is YAML", policy_file),
        ("Rules of the policy file", policy_rules),
        ("Options without a meaning", options),
        ("Paste file", paste_file),
        ("RPC pins", rpc_pins),
    )


def _is_older(pin: str) -> bool:
    """True if we know that version and a newer one."""
    major, minor = (int(part) for part in pin.split("."))
    own_major, own_minor = (int(part) for part in rpc.VERSION.split("."))
    return major == own_major and minor < own_minor
