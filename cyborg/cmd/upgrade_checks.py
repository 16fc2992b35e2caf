# SPDX-License-Identifier: Apache-2.0
"""What ``cyborg-status upgrade check`` looks at before services are started with this release."""

from __future__ import annotations

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_upgradecheck import common_checks, upgradecheck

from cyborg import conf as cyborg_conf
from cyborg import db, errors, rpc
from cyborg.api import app
from cyborg.db import schema

SUCCESS = upgradecheck.Code.SUCCESS
WARNING = upgradecheck.Code.WARNING
FAILURE = upgradecheck.Code.FAILURE


class Checks(upgradecheck.UpgradeCommands):
    """The checks in the order in which they are shown, each with its name."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self.conf = conf

    def schema(self) -> upgradecheck.Result:
        """Whether the database has all that this release expects."""
        try:
            db.configure(self.conf)
            found = schema.version()
        except errors.ServiceUnavailable as exc:
            return upgradecheck.Result(FAILURE, str(exc))
        except (db_exc.DBError, sa.exc.SQLAlchemyError) as exc:
            # What a driver says may quote the URL with its password.
            sentence = f"The database does not answer ({type(exc).__name__})."
            return upgradecheck.Result(FAILURE, sentence)
        if found == schema.head():
            return upgradecheck.Result(SUCCESS)
        if found is None or schema.knows(found):
            sentence = (
                f"The schema is at revision {found or 'none'}, and this release needs "
                f"{schema.head()}: run `cyborg-dbsync upgrade`."
            )
        else:
            sentence = f"The schema is at revision {found}, which this release does not know."
        return upgradecheck.Result(FAILURE, sentence)

    def options(self) -> upgradecheck.Result:
        """Whether the configuration has options without a meaning."""
        found = cyborg_conf.meaningless(self.conf)
        return upgradecheck.Result(WARNING if found else SUCCESS, " ".join(found) or None)

    def paste_file(self) -> upgradecheck.Result:
        """Whether the operator's own paste file, if there is one, is for this release."""
        path = app.paste_file(self.conf)
        if app.is_usable(path, self.conf.api.auth_strategy):
            return upgradecheck.Result(SUCCESS)
        sentence = (
            f"The paste file {path} has no pipeline {self.conf.api.auth_strategy}, so it is not "
            f"for this release: remove it, or make it again from {app.SHIPPED_PASTE_FILE}."
        )
        return upgradecheck.Result(FAILURE, sentence)

    def rpc_pins(self) -> upgradecheck.Result:
        """Whether messages keep to an older version, or to one that is not spoken."""
        pins = {name: self.conf.upgrade_levels[name] for name in ("agent", "conductor")}
        pinned = {name: pin for name, pin in pins.items() if pin not in {None, rpc.VERSION}}
        if not pinned:
            return upgradecheck.Result(SUCCESS)
        named = ", ".join(f"{name} = {pin}" for name, pin in pinned.items())
        if all(_is_older(pin) for pin in pinned.values()):
            sentence = (
                f"[upgrade_levels] {named}: remove the pins and restart every service when all of "
                f"them are of this release, which speaks {rpc.VERSION}."
            )
            return upgradecheck.Result(WARNING, sentence)
        sentence = f"[upgrade_levels] {named}: this release speaks {rpc.VERSION}, and not that."
        return upgradecheck.Result(FAILURE, sentence)

    def policy_file(self) -> upgradecheck.Result:
        """Whether the policy file is YAML."""
        return common_checks.check_policy_json(self, self.conf)

    _upgrade_checks = (
        ("Database schema", schema),
        ("Policy file is YAML", policy_file),
        ("Options without a meaning", options),
        ("Paste file", paste_file),
        ("RPC pins", rpc_pins),
    )


def _is_older(pin: str) -> bool:
    """Whether we can speak that version, and have newer ones."""
    major, minor = (int(part) for part in pin.split("."))
    own_major, own_minor = (int(part) for part in rpc.VERSION.split("."))
    return major == own_major and minor < own_minor
