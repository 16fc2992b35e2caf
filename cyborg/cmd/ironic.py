# SPDX-License-Identifier: Apache-2.0
"""``cyborg-ironic``: read the devices of bare-metal nodes, which have no agent, from Ironic."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import prettytable
from oslo_config import cfg

from cyborg import db, process
from cyborg.common import errors, needs
from cyborg.conf import command_help
from cyborg.db import revision, schema
from cyborg.ironic import api, run, store
from cyborg.peers import clients

_HELP = (
    "Read from Ironic which accelerators bare-metal nodes have, to show them in the API, and end. "
    "It reads [ironic], [database] and [agent] enabled_drivers."
)
_COLUMNS = ("Host", "Devices", "New", "Changed", "Gone", "Unknown", "")


def _add_commands(subparsers: Any) -> None:
    imported = command_help.add_command(
        subparsers,
        "import",
        "Import what Ironic's inspection has found, and forget the nodes that are gone.",
    )
    imported.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="UUID",
        help="Only this node, by UUID or name. May be repeated.",
    )
    imported.add_argument(
        "--from-file",
        metavar="PATH",
        help="Do not ask Ironic, but read the inventory of the one --node from a file, as "
        "`openstack baremetal node inventory save` has written it.",
    )
    imported.add_argument(
        "--hostname", metavar="NAME", help="With --from-file: the name of the node's host."
    )
    imported.add_argument(
        "--remove-gone",
        action="store_true",
        help="Forget the nodes that Ironic no longer shows, or shows without accelerators now, "
        "even if they are most nodes.",
    )
    imported.add_argument(
        "--dry-run", action="store_true", help="Show what would change; write nothing."
    )
    imported.set_defaults(run=_import)
    forget = command_help.add_command(
        subparsers, "forget", "Delete what was imported of hosts."
    )
    which = forget.add_mutually_exclusive_group(required=True)
    which.add_argument("hosts", nargs="*", default=[], metavar="HOST", help="Name or UUID.")
    which.add_argument("--all", action="store_true", help="Of all hosts.")
    forget.set_defaults(run=_forget)


def _import(conf: cfg.ConfigOpts) -> int:
    wanted = conf.command
    if wanted.from_file is not None:
        return _show([_import_file(conf)], dry_run=wanted.dry_run)
    if wanted.hostname is not None:
        raise errors.Misconfigured("Give --hostname with --from-file only.")
    clients.require(conf, api.GROUP, "Ironic")
    needs.check(conf, api.GROUP)
    wish = run.NodeSelection(
        nodes=wanted.node, dry_run=wanted.dry_run, remove_gone=wanted.remove_gone
    )
    outcomes = run.import_some(conf, wish) if wish.nodes else run.import_all(conf, wish)
    return _show(outcomes, dry_run=wish.dry_run)


def _import_file(conf: cfg.ConfigOpts) -> store.Imported:
    wanted = conf.command
    if len(wanted.node) != 1:
        raise errors.Misconfigured("Give --from-file with one --node, the UUID of the node.")
    try:
        document = json.loads(pathlib.Path(wanted.from_file).read_bytes())
    except ValueError as exc:
        raise errors.Misconfigured(f"{wanted.from_file} is not JSON: {exc}") from exc
    if not isinstance(document, Mapping) or "inventory" not in document:
        raise errors.Misconfigured(f"{wanted.from_file} has no inventory of Ironic.")
    return run.import_document(
        conf, document, wanted.node[0], wanted.hostname, dry_run=wanted.dry_run
    )


def _forget(conf: cfg.ConfigOpts) -> int:
    known = store.known_hosts()
    wanted = set(conf.command.hosts)
    if unknown := wanted - {*known, *known.values()}:
        raise errors.Misconfigured(f"Not known from Ironic: {', '.join(sorted(unknown))}.")
    uuids = [
        uuid for uuid, name in known.items() if conf.command.all or wanted & {uuid, name}
    ]
    devices = store.forget(uuids, dry_run=False)
    print(f"Forgot {len(uuids)} hosts with {devices} devices.")
    return 0


def _show(outcomes: Iterable[store.Imported], *, dry_run: bool) -> int:
    """Print what has become of each node, and return the exit status."""
    table = prettytable.PrettyTable(_COLUMNS, align="l")
    failed = False
    for each in outcomes:
        failed = failed or each.failure is not None
        counted = (getattr(each, name.lower()) for name in _COLUMNS[:-1])
        table.add_row([*counted, _sentence(each)])
    print(table)
    if dry_run:
        print("Nothing was written.")
    return int(failed)


def _sentence(outcome: store.Imported) -> str:
    if outcome.failure is not None:
        return f"failed: {outcome.failure}"
    if outcome.has_agent:
        return "it has an agent, which says what it has"
    return "; ".join(outcome.notes)


@process.one_sentence("cyborg-ironic")
def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    conf = cfg.CONF
    conf.register_cli_opt(cfg.SubCommandOpt("command", title="Commands", handler=_add_commands))
    process.read_options(conf, sys.argv[1:] if argv is None else argv, _HELP)
    process.log_beside_output(conf)
    db.configure(conf)
    with revision.one_sentence():
        revision.check_newest(schema.head())
        return int(conf.command.run(conf))


if __name__ == "__main__":
    sys.exit(main())
