# SPDX-License-Identifier: Apache-2.0
"""``cyborg-privsep-helper``: starts one of the agent's privileged helpers, and nothing else.

A line for sudo that permits ``privsep-helper`` itself needs a wildcard for the socket, and that
lets other arguments through, such as a configuration file of the agent's user. So sudo permits this
program, which takes no argument but the two that oslo.privsep gives it, each of a known form.
"""

from __future__ import annotations

import os
import pathlib
import re
import stat
import sys
from collections.abc import Callable
from typing import NoReturn

#: The file that the helpers read first, and beside it what else the agent reads, if it is there.
CONFIG = pathlib.Path("/etc/cyborg/cyborg.conf")
_BESIDE = ("cyborg-agent.conf", "cyborg.conf.d", "cyborg-agent.conf.d")

_CONTEXT = re.compile(r"cyborg\.drivers\.privileged\.(context|erasing|programming|watching)")
_SOCKET = re.compile(r"/tmp/[A-Za-z0-9_]{1,64}/privsep\.sock")  # noqa: S108 - of oslo.privsep
#: What the helper says goes to the agent's log. A file in a folder of its user may be a link.
_LOG = ("--log-dir=", "--log-file=", "--log-config-append=")
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class BadArguments(Exception):
    """Why no helper is started."""


def main() -> NoReturn:
    """Become the helper."""
    try:
        arguments = _checked(sys.argv[1:])
        config = _config()
    except BadArguments as exc:
        sys.exit(f"cyborg-privsep-helper: {exc}")
    # -I: no module of the caller's folder or environment is loaded.
    helper = [sys.executable, "-I", "-m", "oslo_privsep.daemon", *config, *_LOG, *arguments]
    os.execve(sys.executable, helper, _ENVIRONMENT)  # noqa: S606 - checked above


def _checked(arguments: list[str]) -> list[str]:
    match arguments:
        case ["--privsep_context", context, "--privsep_sock_path", path]:
            if _CONTEXT.fullmatch(context) and _SOCKET.fullmatch(path):
                return arguments
    raise BadArguments("it takes only what oslo.privsep gives it for a context of Cyborg.")


def _config() -> list[str]:
    """The options that name the files of the agent, which only root can have written."""
    _check(CONFIG.parent, stat.S_ISDIR)
    _check(CONFIG, stat.S_ISREG)
    options = [f"--config-file={CONFIG}"]
    for path in map(CONFIG.with_name, _BESIDE):
        if not os.path.lexists(path):
            continue
        is_folder = path.suffix == ".d"
        _check(path, stat.S_ISDIR if is_folder else stat.S_ISREG)
        for file in path.glob("*.conf") if is_folder else ():
            _check(file, stat.S_ISREG)
        options.append(f"--config-{'dir' if is_folder else 'file'}={path}")
    return options


def _check(path: pathlib.Path, is_kind: Callable[[int], bool]) -> None:
    """Raise BadArguments if it is of another kind, or others than root can have written it."""
    try:
        # What a link leads to may be in a directory where others can put another file.
        status = path.lstat()
    except OSError as exc:
        raise BadArguments(f"{path} cannot be read: {exc.strerror}.") from exc
    if not is_kind(status.st_mode):
        raise BadArguments(f"{path} must be no link, but the file or directory itself.")
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadArguments(f"{path} must belong to root, and nobody else may write it.")


if __name__ == "__main__":
    main()
