# SPDX-License-Identifier: Apache-2.0
"""``cyborg-status``: check a running cloud, or check whether it is ready for an upgrade.

``cyborg-status accept`` gives a resource provider out that is withheld.
``cyborg-status host`` enrols and revokes the keys of hosts.
``cyborg-status check`` exits with 0 if nothing is wrong, 1 if something is, and 2 if the database
or another service does not answer; it only reads, unless ``--repair`` is given. ``cyborg-status
upgrade check`` exits with 0 if all is well, 1 for a warning and 2 for a failure.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import prettytable
import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_policy import opts as policy_opts
from oslo_upgradecheck import upgradecheck

from cyborg import db, notifications, nova, process, work
from cyborg.allocations import fitting
from cyborg.audits import consistency, differences, uses
from cyborg.audits.finding import Finding, Repair, repair
from cyborg.cmd import host_key_commands, old_files, upgrade_checks
from cyborg.common import errors
from cyborg.conf import command_help
from cyborg.db import models, revision, schema
from cyborg.inventory import nodes
from cyborg.peers import clients
from cyborg.placement import adoption, audit, compare

WELL, WRONG, UNKNOWN = 0, 1, 2

#: Work that was tried more often counts as stuck; that takes two minutes or more.
_ATTEMPTS = 10


_HELP = (
    "Find what is wrong in a running Cyborg, or in the way of an upgrade. Changes: accept, "
    "rename-host, host, check --repair. Reads [database], [placement]."
)


@process.one_sentence("cyborg-status")
def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    conf = cfg.CONF
    add = functools.partial(_add_commands, checks=upgrade_checks.Checks(conf))
    conf.register_cli_opt(cfg.SubCommandOpt("command", title="Commands", handler=add))
    process.read_options(conf, sys.argv[1:] if argv is None else argv, _HELP)
    process.log_beside_output(conf)
    return int(conf.command.run(conf))


def _add_commands(parsers: Any, checks: upgrade_checks.Checks) -> None:
    add = functools.partial(command_help.add_command, parsers)
    check = add(
        "check", "Find problems in the database and Placement; without --repair change nothing."
    )
    check.add_argument(
        "--format", choices=["table", "json"], default="table", help="How to print findings."
    )
    check.add_argument(
        "--attempts",
        type=int,
        default=_ATTEMPTS,
        help=f"Report work that was tried more often than this; default {_ATTEMPTS}.",
    )
    check.add_argument(
        "--settle",
        type=float,
        default=differences.SETTLE,
        help="Seconds after which an allocation that does not fit is looked at again, so that "
        f"no instance is reported during its boot or deletion; default {differences.SETTLE:g}.",
    )
    check.add_argument(
        "--repair",
        action="store_true",
        help="Repair allocations, accelerator requests and the history of their use that do not "
        "fit each other where that is safe; each repair is explained on standard error before it "
        "is done.",
    )
    check.set_defaults(run=_check)
    accept = add("accept", "Give out a resource provider that is withheld for others' allocations.")
    accept.add_argument("provider", help="Uuid, as `cyborg-status check` names it.")
    accept.set_defaults(run=host_key_commands.with_database(_accept))
    rename = add("rename-host", "Keep the record of a host whose machine has another name now.")
    rename.add_argument("old", help="Former [DEFAULT] host of the agent.")
    rename.add_argument("new", help="New [DEFAULT] host of the agent.")
    rename.add_argument(
        "--key",
        action="append",
        default=[],
        help="Fingerprint of a key that is the new host's; others of the old one are revoked.",
    )
    rename.set_defaults(run=host_key_commands.with_database(_rename_host))
    host_key_commands.add(parsers)
    upgrade = add(
        "upgrade", "`upgrade check` says whether an upgrade can start; it changes nothing."
    )
    upgrade.add_argument("check", choices=["check"], help="Check whether an upgrade can start.")
    upgrade.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    upgrade.add_argument(
        "--lines",
        action="store_true",
        help="Instead, tell what becomes of each line of the configuration, paste and policy "
        "files.",
    )
    upgrade.set_defaults(run=lambda conf: _check_upgrade(conf, checks))


def _rename_host(conf: cfg.ConfigOpts) -> None:
    nodes.rename_host(conf.command.old, conf.command.new, tuple(conf.command.key))
    print(f"The record of host {conf.command.old} is that of {conf.command.new} now.")


def _accept(conf: cfg.ConfigOpts) -> None:
    reason = adoption.accept(conf.command.provider)
    print(f"Accepted. It was withheld for this: {reason}")


def _check_upgrade(conf: cfg.ConfigOpts, checks: upgrade_checks.Checks) -> int:
    if conf.command.lines:
        policy_opts.set_defaults(conf)
        for sentence in old_files.lines(conf):
            print(sentence)
        return WELL
    # The framework reads --json from there.
    upgradecheck.CONF = conf
    return int(checks.check())


def _check(conf: cfg.ConfigOpts) -> int:
    hosts, found = {"compared": 0, "in_progress": 0}, list[dict[str, str | None]]()
    notes, fault = list[str](), None
    try:
        _open_database(conf)
        for each, outcome in _findings(conf, hosts):
            found.append({"check": each.check, "finding": each.sentence, "repair": outcome})
        notes = list(_notes(conf))
    except (errors.ServiceUnavailable, ka_exc.ClientException) as exc:
        fault = str(exc)
    except (db_exc.DBError, sa.exc.SQLAlchemyError) as exc:
        # The driver's message may contain the URL with its password.
        fault = f"The database does not answer ({type(exc).__name__})."
    if conf.command.format == "json":
        shown = {"findings": found, "notes": notes, "hosts": hosts, "fault": fault}
        print(json.dumps(shown, indent=2))
    else:
        _print_table(conf, found, hosts, fault)
        for note in notes:
            print(f"Note: {note}")
    if fault is not None:
        return UNKNOWN
    return WRONG if found else WELL


def _open_database(conf: cfg.ConfigOpts) -> None:
    db.configure(conf)
    revision.check()
    if revision.version() != schema.head():
        raise errors.ServiceUnavailable(
            "The schema is not this release's; run `cyborg-dbsync upgrade`."
        )


def _findings(
    conf: cfg.ConfigOpts, hosts: dict[str, int]
) -> Iterator[tuple[Finding, str | None]]:
    """Every problem, and what became of it; the audits are carried out one after the other."""
    command = conf.command
    audits: list[Callable[[], Iterable[Finding]]] = [
        consistency.violations,
        consistency.orphans,
        lambda: _stuck(command.attempts),
        uses.find,
        consistency.withheld,
    ]
    if clients.configured(conf, "placement"):
        audits.append(lambda: _providers(conf, hosts))
        audits.append(lambda: differences.find(conf, settle=command.settle))
    found = itertools.chain.from_iterable(audit() for audit in audits)
    if not command.repair:
        return ((each, None) for each in found)
    notifications.configure(conf)
    return repair(found, functools.partial(print, file=sys.stderr, flush=True))


def _stuck(attempts: int) -> Iterator[Finding]:
    for row in work.stuck(attempts):
        tried = f"{row.attempts} times in {row.age:.0f} seconds"
        yield Finding("work", f"{row.kind}/{row.key} was tried {tried}: {row.last_error}")


def _providers(conf: cfg.ConfigOpts, hosts: dict[str, int]) -> Iterator[Finding]:
    """The differences of each host's providers from the database; the hosts are counted."""
    for name, comparison in compare.compare_all(conf):
        hosts["compared"] += 1
        hosts["in_progress"] += comparison.in_progress
        plan = functools.partial(Repair, "", functools.partial(_look_again, name))
        for sentence in comparison.differences:
            yield Finding(f"placement, host {name}", sentence, plan)


def _look_again(host: str) -> str:
    audit.look_at(models.Host.name == host)
    return "A conductor puts it right now."


def _notes(conf: cfg.ConfigOpts) -> Iterator[str]:
    """Profiles that no device fits, and flavors of Nova's whose profile cannot be asked for.

    Both may be meant: a profile may be made before its devices are there.
    """
    with db.reader() as session:
        found = fitting.of_profiles(session)
    for name, sentences in found.items():
        for sentence in sentences:
            yield f"Device profile {name}: {sentence}"
    if not clients.configured(conf, "nova"):
        return
    try:
        for flavor, specs in nova.flavors(conf):
            asked = specs.get(nova.PROFILE_OF_FLAVOR)
            if asked and asked not in found:
                yield f"Flavor {flavor} names device profile {asked}, which is disabled or absent."
    except (errors.ServiceUnavailable, ka_exc.ClientException) as exc:
        yield f"Flavors are not looked at: {exc}"


def _print_table(
    conf: cfg.ConfigOpts,
    found: list[dict[str, str | None]],
    hosts: dict[str, int],
    fault: str | None,
) -> None:
    # First, since what was not looked at has no findings.
    if fault is not None:
        print(f"Not everything could be checked: {fault}", file=sys.stderr, flush=True)
    if not clients.configured(conf, "placement"):
        print("Placement is not compared: [placement] auth_type is not set.")
    if found:
        table = prettytable.PrettyTable(["Check", "Finding"], align="l", max_width=100)
        for check, *said in (each.values() for each in found):
            table.add_row([check, " ".join(filter(None, said))])
        print(table)
    # After a fault nobody knows whether there are more.
    if found or fault is None:
        print(f"Findings: {len(found)}.")
    print(f"Hosts compared with Placement: {hosts['compared']}.")
    if hosts["in_progress"]:
        print(f"Hosts with a change in progress: {hosts['in_progress']}.")


if __name__ == "__main__":
    sys.exit(main())
