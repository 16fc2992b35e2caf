# SPDX-License-Identifier: Apache-2.0
"""A command's ``--help``: what it does, its own options and commands, then what all share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from oslo_config import cfg

#: Options that oslo.log, and oslo.config for completion, give to every command.
_OF_LIBRARIES = (
    "--log-",
    "--logfile",
    "--logdir",
    "--nodebug",
    "--nouse-",
    "--shell_completion",
    "--syslog-",
    "--use-",
    "--watch-",
    "--nowatch-",
)
#: Options that every command has, and that people look for.
_SHARED = ("--config-", "--debug", "--version")
#: What begins the names of the options of each section after the command's own.
_LATER = {
    "options that every command has": _SHARED,
    "options of the log, and others that every service has": _OF_LIBRARIES,
}


def add_command(subparsers: Any, name: str, text: str) -> Any:
    """Add a command of a command, whose ``--help`` begins with ``text``; return its parser."""
    return subparsers.add_parser(name, help=text, description=text)


def _is_one(action: argparse.Action, begins: tuple[str, ...]) -> bool:
    return any(text.startswith(begins) for text in action.option_strings)


class OwnFirst(argparse.HelpFormatter):
    """Shows what all commands share at the end, and nothing of libraries in the usage."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._later: dict[str, list[argparse.Action]] = {}

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        """Add the usage with the command's own options."""
        own = [action for action in actions if not _is_one(action, _OF_LIBRARIES)]
        super().add_usage(usage, own, groups, prefix)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        """Add the command's own options of a section, and keep the others for the end."""
        own = list(actions)
        for title, begins in _LATER.items():
            kept = [action for action in own if _is_one(action, begins)]
            self._later.setdefault(title, []).extend(kept)
            own = [action for action in own if action not in kept]
        super().add_arguments(own)

    def format_help(self) -> str:
        """The whole text."""
        for title, kept in self._later.items():
            self.start_section(title)
            super().add_arguments(kept)
            self.end_section()
        self._later = {}
        return super().format_help()


class _OptionOrder(cfg.Opt):
    """No option: tells the parser of the command line how to print its help."""

    def _add_to_cli(self, parser: Any, group: Any = None) -> None:
        parser.formatter_class = OwnFirst


def register(conf: cfg.ConfigOpts) -> None:
    """Let the command that reads its options with ``conf`` print its help in this order."""
    conf.register_cli_opt(_OptionOrder("help_order", help="Has no effect."))
