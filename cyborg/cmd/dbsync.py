# SPDX-License-Identifier: Apache-2.0
"""``cyborg-dbsync``: create the database schema and upgrade it."""

from __future__ import annotations

import sys
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_log import log

from cyborg import conf as cyborg_conf
from cyborg import db, errors, process, version
from cyborg.db import schema

LOG = log.getLogger(__name__)


def _upgrade(conf: cfg.ConfigOpts) -> None:
    before = schema.version()
    schema.upgrade(conf.command.revision)
    print(f"The schema is at revision {schema.version()}; it was at {before or 'none'}.")


def _version(conf: cfg.ConfigOpts) -> None:
    print(schema.version() or "no schema")


def _online_data_migrations(conf: cfg.ConfigOpts) -> None:
    print("There is no data to migrate: `upgrade` does all of it.")


def _stamp(conf: cfg.ConfigOpts) -> None:
    schema.stamp(conf.command.revision)


def _revision(conf: cfg.ConfigOpts) -> None:
    schema.new_revision(conf.command.message, autogenerate=conf.command.autogenerate)


def _add_commands(subparsers: Any) -> None:
    upgrade = subparsers.add_parser("upgrade", help="Upgrade the schema to the newest revision.")
    upgrade.add_argument("--revision", default="head", help="Stop at this revision.")
    upgrade.set_defaults(run=_upgrade)
    create = subparsers.add_parser("create_schema", help="Same as upgrade.")
    create.set_defaults(run=_upgrade, revision="head")
    show = subparsers.add_parser("version", help="Print the schema's revision.")
    show.set_defaults(run=_version)
    online = subparsers.add_parser(
        "online_data_migrations", help="Does nothing: upgrade migrates all data."
    )
    online.add_argument("--max-count", "--max_count", type=int, help="Has no effect.")
    online.set_defaults(run=_online_data_migrations)
    stamp = subparsers.add_parser("stamp", help="Record a revision without running it.")
    stamp.add_argument("--revision", default="head", help="The revision to record.")
    stamp.set_defaults(run=_stamp)
    revision = subparsers.add_parser("revision", help="Write a new revision, for developers.")
    revision.add_argument("-m", "--message", required=True, help="What the revision does.")
    revision.add_argument("--autogenerate", action="store_true", help="Fill it from the models.")
    revision.set_defaults(run=_revision)


_HELP = (
    "Create and upgrade the schema of Cyborg's database, before the services start. "
    "It reads [database] of cyborg.conf."
)


@process.one_sentence("cyborg-dbsync")
def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    conf = cfg.CONF
    cyborg_conf.register(conf)
    process.register_log(conf)
    conf.register_cli_opt(
        cfg.SubCommandOpt("command", title="Commands", handler=_add_commands)
    )
    arguments = sys.argv[1:] if argv is None else argv
    conf(arguments, project="cyborg", version=version.VERSION, description=_HELP)
    if not hasattr(conf.command, "run"):
        conf.print_help()
        return 2
    log.setup(conf, "cyborg")
    db.configure(conf)
    try:
        schema.check_not_foreign()
        conf.command.run(conf)
    except (db_exc.DBError, sa.exc.OperationalError) as exc:
        # The driver's message may contain the URL with its password.
        LOG.debug("The database does not answer", exc_info=exc)
        raise errors.Misconfigured(
            f"The database that [database] connection names does not answer ({type(exc).__name__})."
        ) from exc
    return 0


if __name__ == "__main__":
    sys.exit(main())
