# SPDX-License-Identifier: Apache-2.0
"""The wait for what takes time: each step on standard error, and what goes on after Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from osc_lib import exceptions

from cyborg.osc.api import Row


def for_end(
    looks: Iterable[Row],
    is_over: Callable[[Row], bool],
    steps: Callable[[Row], Sequence[str]],
    goes_on: str,
) -> Row:
    """The last of several looks at something; its steps are written once each.

    ``goes_on`` is a sentence for who ends the wait before.

    :raises CommandError: the user has ended the wait
    """
    told: Sequence[str] = ()
    try:
        for row in looks:
            now = steps(row)
            kept = len(told) if now[: len(told)] == told else 0
            sys.stderr.writelines(f"{line}\n" for line in now[kept:])
            sys.stderr.flush()
            told = now
            if is_over(row):
                break
    except KeyboardInterrupt:
        raise exceptions.CommandError(goes_on) from None
    return row
