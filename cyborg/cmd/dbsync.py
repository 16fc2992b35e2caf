# SPDX-License-Identifier: Apache-2.0
"""``cyborg-dbsync``: create the database schema, upgrade it, import an old database."""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Any

import prettytable
from oslo_config import cfg

from cyborg import db, process
from cyborg.allocations import fitting
from cyborg.common import errors
from cyborg.conf import command_help
from cyborg.db import revision, schema
from cyborg.importing import run as importing
from cyborg.importing import source as old


def _upgrade(conf: cfg.ConfigOpts) -> None:
    before = revision.version()
    schema.upgrade(conf.command.revision)
    print(f"The schema is at revision {revision.version()}; it was at {before or 'none'}.")


def _version(conf: cfg.ConfigOpts) -> None:
    print(revision.version() or "no schema")


def _online_data_migrations(conf: cfg.ConfigOpts) -> None:
    print("There is no data to migrate: `upgrade` does all of it.")


def _stamp(conf: cfg.ConfigOpts) -> None:
    schema.stamp(conf.command.revision)


def _revision(conf: cfg.ConfigOpts) -> None:
    schema.new_revision(conf.command.message, autogenerate=conf.command.autogenerate)


def _import(conf: cfg.ConfigOpts) -> None:
    with old.connect(_url(conf.command.source)) as source:
        report = importing.check(source, _show_progress)
        _print_report(report)
        if report.findings.refusals:
            raise errors.Misconfigured(
                f"Nothing was imported, because of what is refused: {len(report.findings.refusals)}"
            )
        if conf.command.dry_run:
            print("Nothing was written.")
            return
        importing.carry_out(source, _show_progress)
    with db.reader() as session:
        misfits = fitting.of_profiles(session)
    for name, sentences in misfits.items():
        for sentence in sentences:
            print(f"Note: Device profile {name}: {sentence}")
    print("Everything is imported.")


def _url(given: str) -> str:
    """The URL itself, or that of ``[database] connection`` in the file or folder that is named."""
    if "://" in given:
        return given
    path = pathlib.Path(given)
    if not path.exists():
        raise errors.Misconfigured(f"--from names neither a URL nor a file nor a folder: {given}")
    conf = cfg.ConfigOpts()
    db.register(conf)
    # More may be in a folder beside it, which need not be there.
    files, more = [given], f"{given}.d"
    if path.is_dir():
        files, more = sorted(map(str, path.glob("*.conf"))), str(path / "cyborg.conf.d")
    conf([], project="cyborg", default_config_files=files, default_config_dirs=[more])
    if not conf.database.connection:
        raise errors.Misconfigured(f"{given} sets no [database] connection.")
    return str(conf.database.connection)


def _print_report(report: importing.Report) -> None:
    print(f"The database is that of upstream's release {report.release}.")
    table = prettytable.PrettyTable(["", "There", "Not here yet"], align="r")
    table.add_rows([[kind, *counts] for kind, counts in report.kinds.items()])
    print(table)
    for sentence in report.findings.notes:
        print(f"Note: {sentence}")
    for sentence in report.findings.refusals:
        print(f"Refused: {sentence}")


_BAR = 40


def _show_progress(step: str, done: int, total: int) -> None:
    """Draw a bar on a terminal; elsewhere nothing."""
    if sys.stderr.isatty():
        filled = "#" * (_BAR * done // max(total, 1))
        end = "\n" if done >= total else ""
        print(f"\r{step:24} [{filled:{_BAR}}] {done}/{total}", end=end, file=sys.stderr, flush=True)


def _add_commands(subparsers: Any) -> None:
    add = functools.partial(command_help.add_command, subparsers)
    upgrade = add("upgrade", "Create the tables, or bring them to the newest revision.")
    upgrade.add_argument("--revision", default="head", help="Stop at this revision.")
    upgrade.set_defaults(run=_upgrade)
    create = add("create_schema", "Same as upgrade.")
    create.set_defaults(run=_upgrade, revision="head")
    show = add("version", "Print the schema's revision.")
    show.set_defaults(run=_version)
    online = add("online_data_migrations", "Does nothing: upgrade migrates all data.")
    online.add_argument("--max-count", "--max_count", type=int, help="Has no effect.")
    online.set_defaults(run=_online_data_migrations)
    imported = add("import", "Take over the database of the released upstream, releases 15 to 17.")
    imported.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="URL",
        help="URL of the old database, or the cyborg.conf, or its folder, with that URL as "
        "[database] connection. The old database is only read.",
    )
    imported.add_argument(
        "--dry-run", action="store_true", help="Check and report only; write nothing."
    )
    imported.set_defaults(run=_import)
    stamp = add("stamp", "Record a revision without running it; for developers.")
    stamp.add_argument("--revision", default="head", help="The revision to record.")
    stamp.set_defaults(run=_stamp)
    revision = add("revision", "Write a new revision; for developers.")
    revision.add_argument("-m", "--message", required=True, help="The change that it makes.")
    revision.add_argument("--autogenerate", action="store_true", help="Fill it from the models.")
    revision.set_defaults(run=_revision)


_HELP = (
    "Create or upgrade the schema of Cyborg's database before the services start, or import a "
    "database of the released upstream. It reads [database]."
)


@process.one_sentence("cyborg-dbsync")
def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    conf = cfg.CONF
    conf.register_cli_opt(cfg.SubCommandOpt("command", title="Commands", handler=_add_commands))
    process.read_options(conf, sys.argv[1:] if argv is None else argv, _HELP)
    process.set_up_log(conf)
    db.configure(conf, patient=True)
    with revision.one_sentence():
        revision.check_not_foreign()
        conf.command.run(conf)
    return 0


if __name__ == "__main__":
    sys.exit(main())
