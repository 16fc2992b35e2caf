# SPDX-License-Identifier: Apache-2.0
"""What the services log is read by people: no line shows an object as Python writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from cyborg import history
from cyborg.handles import giving_up
from cyborg.tests import product_code

_LEVELS = {"info", "warning", "error", "critical", "exception"}
_OBJECTS = (
    ast.List,
    ast.Dict,
    ast.Set,
    ast.Tuple,
    ast.ListComp,
    ast.DictComp,
    ast.SetComp,
    ast.GeneratorExp,
)
_MAKERS = {"list", "dict", "set", "tuple", "sorted", "asdict"}


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for path, tree in product_code.trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="LOG"), attr=level)):
                    if level in _LEVELS:
                        yield f"{path}:{node.lineno}", node


def _is_object(argument: ast.expr) -> bool:
    match argument:
        case ast.Call(func=ast.Name(id=name)):
            return name in _MAKERS
    return isinstance(argument, _OBJECTS)


def test_no_line_shows_a_list_or_a_dictionary() -> None:
    calls = list(_calls())
    assert len(calls) > 100
    assert [at for at, call in calls if any(map(_is_object, call.args[1:]))] == []


def test_what_was_given_up_is_a_sentence() -> None:
    arq = giving_up.GivenUpArq(
        uuid="a",
        state="Bound",
        project_id=None,
        instance_uuid="i",
        hostname=None,
        device_rp_uuid=None,
        attach_handle_uuid=None,
        host_step=None,
        last_error=None,
    )
    given_up = giving_up.GivenUp(arqs=(arq,), devices=("d", "e"), not_excluded=("It may go on.",))
    assert str(given_up) == "ARQs a (Bound, instance i); devices d, e. It may go on."
    assert str(giving_up.GivenUp(arqs=())) == "nothing."


def test_a_reason_is_quoted_and_may_be_left_out() -> None:
    assert history.in_log("two\nlines") == r"'two\nlines'"
    assert history.in_log(None) == "no reason given"
