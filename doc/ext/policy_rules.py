# SPDX-License-Identifier: Apache-2.0
"""The directive ``policy-rules``: policy rules as the code has them.

Its argument is a module of :mod:`cyborg.policy.rules`. Unlike that of oslo.policy it needs no
installed Cyborg, and a rule that is badly described fails the build.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from docutils import nodes, statemachine
from oslo_policy import policy
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def _lines(rule: policy.RuleDefault) -> Iterator[str]:
    yield f"``{rule.name}``"
    yield f"  {rule.description or ''}"
    yield ""
    yield f"  :Default: ``{rule.check_str}``"
    if isinstance(rule, policy.DocumentedRuleDefault):
        asked = [f"``{asked['method']} {asked['path']}``" for asked in rule.operations]
        yield f"  :Requests: {', '.join(asked)}"
    yield ""


class PolicyRules(SphinxDirective):
    """A definition for each rule of one module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the definitions."""
        module = importlib.import_module(f"cyborg.policy.rules.{self.arguments[0]}")
        text = statemachine.StringList()
        for rule in module.RULES:
            for line in _lines(rule):
                text.append(line, module.__name__)
        holder = nodes.Element()
        self.state.nested_parse(text, self.content_offset, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directive known."""
    app.add_directive("policy-rules", PolicyRules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
