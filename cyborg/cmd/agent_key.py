# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent key``: shows the public part of this host's key, or changes the key."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from oslo_config import cfg

from cyborg.agent import host_signer
from cyborg.common import errors
from cyborg.conf import command_help

NAME = "key"


def add(subparsers: Any) -> None:
    """Add the command to a command line."""
    text = (
        "Print the public part of this host's key, which is made if there is none. An "
        "administrator gives it to `openstack accelerator host key enroll`."
    )
    parser = command_help.add_command(subparsers, NAME, text)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--next",
        action="store_true",
        help="Print the public part of the next key, which is made if there is none.",
    )
    which.add_argument(
        "--switch",
        action="store_true",
        help="Sign with the next key from now on, when it is enrolled, and delete the former one. "
        "The agent need not be restarted.",
    )


def run(conf: cfg.ConfigOpts) -> int:
    """Run the command, and return the exit status."""
    if os.geteuid() == 0:
        _become_owner(pathlib.Path(conf.state_path))
    own = host_signer.HostSigner(conf)
    if conf.command.switch:
        print(own.switch())
    else:
        print(own.public("next" if conf.command.next else "host"))
    return 0


def _become_owner(path: pathlib.Path) -> None:
    """Give up root: whoever has the folder might have put links into it."""
    try:
        owner = path.stat()
    except FileNotFoundError as exc:
        raise errors.Misconfigured(
            f"[DEFAULT] state_path {path} does not exist: make it, and give it to the user of the "
            "agent."
        ) from exc
    if owner.st_uid != 0:
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
