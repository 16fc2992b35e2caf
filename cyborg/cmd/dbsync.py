# SPDX-License-Identifier: Apache-2.0
"""``cyborg-dbsync``: create the database schema and upgrade it."""

from __future__ import annotations

import sys
from typing import Any

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as cyborg_conf
from cyborg import db, version
from cyborg.db import schema


def _upgrade(conf: cfg.ConfigOpts) -> None:
    schema.upgrade(conf.command.revision)


def _version(conf: cfg.ConfigOpts) -> None:
    print(schema.version() or "no schema")


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
    stamp = subparsers.add_parser("stamp", help="Record a revision without running it.")
    stamp.add_argument("--revision", default="head", help="The revision to record.")
    stamp.set_defaults(run=_stamp)
    revision = subparsers.add_parser("revision", help="Write a new revision, for developers.")
    revision.add_argument("-m", "--message", required=True, help="What the revision does.")
    revision.add_argument("--autogenerate", action="store_true", help="Fill it from the models.")
    revision.set_defaults(run=_revision)


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    conf = cfg.CONF
    cyborg_conf.register(conf)
    log.register_options(conf)
    conf.register_cli_opt(
        cfg.SubCommandOpt("command", title="Commands", handler=_add_commands)
    )
    conf(argv if argv is not None else sys.argv[1:], project="cyborg", version=version.VERSION)
    if not hasattr(conf.command, "run"):
        conf.print_help()
        return 2
    log.setup(conf, "cyborg")
    db.configure(conf)
    conf.command.run(conf)
    return 0


if __name__ == "__main__":
    sys.exit(main())
