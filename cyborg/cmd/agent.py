# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent``: finds and serves the accelerators of the host it runs on."""

from __future__ import annotations

import sys
from typing import Any

from oslo_config import cfg

from cyborg import metrics, process, rpc
from cyborg.agent import host_signer, service
from cyborg.cmd import agent_key, discover
from cyborg.common import errors, needs

_HELP = (
    "Find the accelerators of this host and prepare them for guests, until SIGTERM. "
    "It reads [agent] and the groups of its drivers, and needs no database."
)

#: The default of oslo.messaging, which is a guest on this host.
_NO_BROKER = "rabbit://"

_COMMANDS = {discover.NAME: discover, agent_key.NAME: agent_key}


def _add_commands(subparsers: Any) -> None:
    subparsers.required = False
    for command in _COMMANDS.values():
        command.add(subparsers)


@process.one_sentence("cyborg-agent")
def main(argv: list[str] | None = None) -> int:
    """Run the agent until a signal stops it, or one command; return the exit status."""
    conf = cfg.CONF
    conf.register_cli_opt(
        cfg.SubCommandOpt(
            "command", title="Commands", help="Without one, the agent runs.", handler=_add_commands
        )
    )
    process.read_options(conf, sys.argv[1:] if argv is None else argv, _HELP)
    if conf.command.name is not None:
        return int(_COMMANDS[conf.command.name].run(conf))
    process.open_log(conf)
    needs.check(conf, "glance", "programming")
    rpc.configure(conf, replies_of=conf.host)
    if conf.transport_url == _NO_BROKER:
        read = ", ".join(conf.config_file or ()) or "none"
        raise errors.Misconfigured(
            "[DEFAULT] transport_url is not set, so the agent has no broker to send its reports "
            f"to. Configuration files read: {read}."
        )
    own = host_signer.HostSigner(conf)
    own.start()
    rpc.use_signer(rpc.HOST, own)
    process.run([*metrics.endpoints(conf), service.Agent(conf)], conf=conf)
    return 0


if __name__ == "__main__":
    sys.exit(main())
