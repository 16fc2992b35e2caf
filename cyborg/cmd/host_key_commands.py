# SPDX-License-Identifier: Apache-2.0
"""``cyborg-status host``: the keys with which hosts sign their messages, and their nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from oslo_config import cfg

from cyborg import db, host_keys
from cyborg.common import errors
from cyborg.conf import command_help
from cyborg.db import revision
from cyborg.inventory import nodes


def add(parsers: Any) -> None:
    """Add the commands to a command line."""
    host = command_help.add_command(parsers, "host", "Manage the keys and the node of a host.")
    host.set_defaults(run=lambda _conf: host.print_help() or 2)
    commands = host.add_subparsers(title="Commands")
    enrol = _command(commands, "enroll", _enrol, "Trust messages that are signed with this key.")
    enrol.add_argument("key", help="The public key, as `cyborg-agent key` prints it on the host.")
    enrol.add_argument(
        "--node",
        help="Name of the host's node, if that is another name than HOST with or without a domain.",
    )
    move = _command(commands, "move", _move, "Give the host another node, with all it has.")
    move.add_argument("node", help="The name that its agent reports now.")
    _command(commands, "keys", _show, "List the keys of the host.")
    revoke = _command(commands, "revoke", _revoke, "Revoke a key: what it signs is refused.")
    revoke.add_argument(
        "key",
        nargs="?",
        help="Fingerprint of the key, as `host keys` shows it; without one all keys are revoked.",
    )


def _command(
    commands: Any, name: str, act: Callable[[cfg.ConfigOpts], None], text: str
) -> Any:
    parser = command_help.add_command(commands, name, text)
    parser.add_argument("host_name", metavar="HOST", help="[DEFAULT] host of the agent.")
    parser.set_defaults(run=with_database(act))
    return parser


def with_database(act: Callable[[cfg.ConfigOpts], None]) -> Callable[[cfg.ConfigOpts], int]:
    """The command that does this with the database, or says in one sentence why it cannot."""

    def run(conf: cfg.ConfigOpts) -> int:
        try:
            db.configure(conf)
            with revision.one_sentence():
                revision.check()
                act(conf)
        except errors.CyborgError as exc:
            print(f"cyborg-status: {exc}", file=sys.stderr)
            return 1
        return 0

    return run


def _enrol(conf: cfg.ConfigOpts) -> None:
    key = nodes.enrol(conf.command.host_name, conf.command.key, conf.command.node)
    print(f"Key {key.fingerprint} is enrolled for host {key.host_name}.")


def _move(conf: cfg.ConfigOpts) -> None:
    nodes.move(conf.command.host_name, conf.command.node)
    print(f"Host {conf.command.host_name} has node {conf.command.node}.")


def _show(conf: cfg.ConfigOpts) -> None:
    for key in host_keys.list_keys(conf.command.host_name):
        state = "enrolled" if key.revoked_ms is None else "revoked"
        print(f"{key.fingerprint} {state} {key.public_key}")


def _revoke(conf: cfg.ConfigOpts) -> None:
    host_keys.revoke(conf.command.host_name, conf.command.key)
    print(f"{conf.command.key or 'Every key'} of host {conf.command.host_name} is revoked.")
