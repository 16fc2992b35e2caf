# SPDX-License-Identifier: Apache-2.0
"""``cyborg-cni``: gives NIC functions to containers, as container runtimes ask for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_config import cfg

from cyborg import process
from cyborg.cni import plugin, protocol
from cyborg.common import errors
from cyborg.peers import clients

_HELP = (
    "Give NIC functions of allocations to containers, and take them back: a plugin of CNI, which "
    "container runtimes run."
)


def main(argv: list[str] | None = None) -> int:
    """Do what the environment asks for, and print the answer; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if "CNI_COMMAND" not in os.environ:
        process.read_options(cfg.CONF, arguments, _HELP)
    text = sys.stdin.read() if "CNI_COMMAND" in os.environ else ""
    try:
        answer = _answer(cfg.CONF, arguments, text)
    except protocol.Failed as exc:
        print(json.dumps(protocol.failure(text, exc)))
        return 1
    if answer is not None:
        print(json.dumps(answer))
    return 0


def _answer(conf: cfg.ConfigOpts, arguments: Sequence[str], text: str) -> Mapping[str, Any] | None:
    request = protocol.read(os.environ, text)
    if request.command == "VERSION":
        return {"cniVersion": protocol.NEWEST, "supportedVersions": protocol.VERSIONS}
    file = request.config.get("configFile")
    try:
        named = () if file is None else ("--config-file", str(file))
        process.read_options(conf, [*arguments, *named], _HELP)
        clients.require(conf, plugin.GROUP)
    except (errors.Misconfigured, cfg.Error) as exc:
        raise protocol.Failed(protocol.BAD_CONFIG, str(exc)) from exc
    return plugin.Plugin(conf).answer(request)


if __name__ == "__main__":
    sys.exit(main())
