# SPDX-License-Identifier: Apache-2.0
"""The order of a command's ``--help``: its own options first, those of libraries last."""

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


def _is_of_library(action: argparse.Action) -> bool:
    return any(text.startswith(_OF_LIBRARIES) for text in action.option_strings)


def _is_shared(action: argparse.Action) -> bool:
    return any(text.startswith(_SHARED) for text in action.option_strings)


class OwnFirst(argparse.HelpFormatter):
    """Shows the options of libraries in a section at the end, and not in the usage."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._last: list[argparse.Action] = []

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        """Add the usage with the command's own options."""
        own = [action for action in actions if not _is_of_library(action)]
        super().add_usage(usage, own, groups, prefix)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        """Add the command's own options of a section, and keep the others for the end."""
        found = list(actions)
        own = [action for action in found if not _is_of_library(action)]
        super().add_arguments(sorted(own, key=_is_shared))
        self._last += filter(_is_of_library, found)

    def format_help(self) -> str:
        """The whole text."""
        if self._last:
            self.start_section("options of the log, and others that every service has")
            super().add_arguments(self._last)
            self.end_section()
            self._last = []
        return super().format_help()


class _Order(cfg.Opt):
    """No option: tells the parser of the command line how to print its help."""

    def _add_to_cli(self, parser: Any, group: Any = None) -> None:
        parser.formatter_class = OwnFirst


def register(conf: cfg.ConfigOpts) -> None:
    """Let the command that reads its options with ``conf`` print its help in this order."""
    conf.register_cli_opt(_Order("help_order", help="Has no effect."))
