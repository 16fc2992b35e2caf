# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent discover``: shows what the drivers of this host see, and changes nothing."""

from __future__ import annotations

import logging
import sys
from typing import Any

from oslo_config import cfg

from cyborg import process
from cyborg.agent import discovery_preview
from cyborg.conf import command_help

NAME = "discover"
_FORMATS = {"table": discovery_preview.as_table, "json": discovery_preview.as_json}


def add(subparsers: Any) -> None:
    """Add the command to a command line."""
    text = (
        "Show what the drivers of this host would report, what they leave out, and why. Nothing is "
        "written. Status 1: one failed, or Nova offers a device too."
    )
    parser = command_help.add_command(subparsers, NAME, text)
    parser.add_argument(
        "--format", choices=_FORMATS, default="table", help="How to print it (%(default)s)."
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="Like --format json."
    )
    parser.add_argument(
        "--driver",
        action="append",
        metavar="NAME",
        help="Ask this driver instead of those of [agent] enabled_drivers. May be repeated.",
    )
    parser.add_argument(
        "--nova-conf",
        action="append",
        default=[],
        metavar="PATH",
        help="A configuration file of this host's nova-compute: show what its [pci] device_spec "
        "lists, too. May be repeated.",
    )


def run(conf: cfg.ConfigOpts) -> int:
    """Run the command, and return the exit status."""
    # The log file is the agent's, and may belong to another user.
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter if conf.debug else _Sentences
    handler.setFormatter(formatter("%(message)s"))
    # oslo.log has a handler of its own by now, which nobody has opened.
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("cyborg").setLevel(logging.DEBUG if conf.debug else logging.INFO)
    process.warn_about_meaningless(conf)
    if conf.command.driver:
        conf.set_override("enabled_drivers", conf.command.driver, group="agent")
    found = discovery_preview.make(conf, conf.command.nova_conf)
    print(_FORMATS[conf.command.format](found))
    return int(found.failed)


class _Sentences(logging.Formatter):
    """Leaves tracebacks out, but for ``--debug``: the errors are in the output."""

    def formatException(self, _exc_info: Any) -> str:  # noqa: N802 - the library's name
        return ""
