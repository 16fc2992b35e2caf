# SPDX-License-Identifier: Apache-2.0
"""The directive ``config-options``: the options of one group, as the code has them.

Its argument is the group. A second argument names options of :mod:`cyborg.conf.drivers` for a group
whose name the operator chooses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from docutils import nodes, statemachine
from oslo_config import cfg
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from cyborg import conf as cyborg_conf
from cyborg.conf import drivers


def _listed(group: str) -> list[cfg.Opt]:
    """The options of the group, each once."""
    every = cyborg_conf.list_opts()
    found = [options for name, options in every if (name or "DEFAULT") == group]
    return list({option.dest: option for option in itertools.chain(*found)}.values())


def _default(option: cfg.Opt) -> str:
    default = option.default if option.sample_default is None else option.sample_default
    if default in (None, [], ""):
        return "unset"
    if isinstance(default, list):
        return f"``{','.join(map(str, default))}``"
    return f"``{str(default).lower() if isinstance(default, bool) else default}``"


def _lines(option: cfg.Opt) -> Iterator[str]:
    yield f"``{option.dest}``"
    # Options of libraries may have no full stop, and several paragraphs.
    yield f"  {' '.join((option.help or '').split())}"
    yield ""
    yield f"  :Type: {option.type}"
    yield f"  :Default: {_default(option)}"
    choices = getattr(option.type, "choices", None)
    if choices:
        yield f"  :Choices: {', '.join(f'``{choice}``' for choice in choices)}"
    if option.mutable:
        yield "  :Without a restart: yes, after SIGHUP"
    yield ""


class ConfigOptions(SphinxDirective):
    """A definition for each option of one group."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the definitions."""
        group = self.arguments[0]
        options = getattr(drivers, self.arguments[1]) if self.arguments[1:] else _listed(group)
        if not options:
            raise self.error(f"there is no group {group}")
        text = statemachine.StringList()
        for option in options:
            for line in _lines(option):
                text.append(line, f"[{group}] {option.dest}")
        holder = nodes.Element()
        self.state.nested_parse(text, self.content_offset, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directive known."""
    app.add_directive("config-options", ConfigOptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
