# SPDX-License-Identifier: Apache-2.0
"""``cyborg-standalone``: API, conductor, agent and a private Placement in one process.

One directory holds all its data: the SQLite files of Cyborg and of Placement. Messages stay in
memory. The API is at ``/``; Placement is at ``/placement``, and the conductor uses it over HTTP.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import IO
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import webob
import webob.exc
from oslo_config import cfg
from oslo_utils import uuidutils

from cyborg import conf as cyborg_conf
from cyborg import db, metrics, notifications, process, rpc, work
from cyborg.agent import service as agent_service
from cyborg.api import app, faults, noauth, server, versions
from cyborg.common import errors, needs, version
from cyborg.conductor import gauges
from cyborg.conductor import service as conductor_service
from cyborg.conf import default
from cyborg.db import revision, schema
from cyborg.peers import clients
from cyborg.placement import local

DATABASE = "cyborg.sqlite"
LOCK = "lock"

_HELP = (
    "Run all of Cyborg in one process, to try it out, until SIGTERM. It needs no other service: "
    "database and Placement are its own, in --state-dir."
)
_OPTS = [
    cfg.PortOpt("port", help="Port to listen on; 0 chooses a free one. If unset, [api] port."),
    cfg.StrOpt(
        "state-dir",
        help="Directory for all data; it is created if it does not exist. If unset, "
        "[DEFAULT] state_path.",
    ),
    next(option for option in default.OPTS if option.name == "host"),
]


@process.one_sentence("cyborg-standalone")
def main(argv: list[str] | None = None) -> int:
    """Serve until a signal asks to stop; return the exit status."""
    conf = cfg.CONF
    state_dir = _configure(conf, sys.argv[1:] if argv is None else argv)
    with _alone(state_dir):
        _run(conf, state_dir)
    return 0


def _configure(conf: cfg.ConfigOpts, argv: list[str]) -> pathlib.Path:
    """Read the options, set those that make the process standalone; return its state directory."""
    conf.register_cli_opts(_OPTS)
    cyborg_conf.register(conf)
    db.register(conf)
    process.register_log(conf)
    conf.set_default("auth_strategy", "noauth", group="api")
    conf.set_default("status_page", True, group="api")
    conf.set_default("enabled_drivers", ["fake_driver"], group="agent")
    conf.set_default("report_readings", True, group="agent")
    # Nothing else creates it, unless a Nova uses this Placement.
    conf.set_default("create_root_provider", True, group="placement")
    conf(
        argv,
        project="cyborg",
        prog="cyborg-standalone",
        description=_HELP,
        version=version.VERSION,
        # The files of /etc/cyborg are for other services on this machine.
        default_config_files=[],
        default_config_dirs=[],
    )
    process.log_beside_output(conf)
    process.warn_about_meaningless(conf)
    state_dir = pathlib.Path(conf.state_dir or conf.state_path).resolve()
    conf.set_override("state_path", str(state_dir))
    conf.set_override("connection", f"sqlite:///{state_dir / DATABASE}", group="database")
    if conf.port is not None:
        conf.set_override("port", conf.port, group="api")
    rpc.use_memory(conf)
    return state_dir


@contextlib.contextmanager
def _alone(state_dir: pathlib.Path) -> Iterator[None]:
    """Keep other processes out of the directory while the block runs."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (state_dir / LOCK).open("a+")
    except OSError as exc:
        raise errors.Misconfigured(f"cannot use the state directory: {exc}") from exc
    with lock:
        _lock(lock, state_dir)
        yield


def _lock(lock: IO[str], state_dir: pathlib.Path) -> None:
    """Take the lock, which the kernel releases whenever and however this process ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        lock.seek(0)
        raise errors.Misconfigured(
            f"the state directory {state_dir} is in use by process {lock.read().strip()}; stop "
            "that one, or choose another --state-dir."
        ) from exc
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()


def _run(conf: cfg.ConfigOpts, state_dir: pathlib.Path) -> None:
    db.configure(conf)
    needs.check(conf, *needs.CALLED)
    revision.check_not_foreign()
    schema.upgrade()
    # The process that had taken work in this directory is dead: we hold its lock.
    work.hand_back_all()
    rpc.configure(conf)
    _configure_notifications(conf)
    http = _http_server(conf, state_dir)
    conductor = conductor_service.ConductorService(conf)
    agent = agent_service.Agent(conf)
    try:
        port = http.listen()
    except OSError as exc:
        raise errors.Misconfigured(f"cannot listen on {conf.api.host_ip}: {exc}") from exc
    url = own_url(str(conf.api.host_ip), port)
    _reach_without_proxy(url)
    local.point_at(conf, f"{url}/placement")
    ready = _ReadyMessage(f"Cyborg is ready: {url}/v2 (state in {state_dir})")
    shown = metrics.endpoints(conf, gauges.Gauges(conf))
    process.run([*shown, http, conductor, agent, ready], conf=conf)
    rpc.close()
    clients.close()
    db.dispose()


def _configure_notifications(conf: cfg.ConfigOpts) -> None:
    if notifications.needs_broker(conf) and not conf[notifications.GROUP].transport_url:
        raise errors.Misconfigured(
            f"nobody could receive its notifications; let [{notifications.GROUP}] transport_url "
            "name a message broker, or leave driver unset."
        )
    notifications.configure(conf)


def _http_server(conf: cfg.ConfigOpts, state_dir: pathlib.Path) -> server.Server:
    host = str(conf.api.host_ip)
    if not (noauth.is_loopback(host) or conf.api.noauth_allow_remote):
        raise errors.Misconfigured(
            f"everybody who reaches {host} would be an administrator, at least of Placement; "
            "listen on 127.0.0.1, or permit it with [api] noauth_allow_remote."
        )
    try:
        placement = local.load_app(state_dir)
    except ImportError as exc:
        raise errors.Misconfigured(
            f"{exc}: install Cyborg with its extra standalone, from the same wheel or checkout."
        ) from exc
    mounts: dict[str, WSGIApplication] = {
        "/": app.load(conf),
        "/placement": noauth.OnlyOurs(placement, conf),
    }
    if not clients.configured(conf, "nova"):
        mounts["/v2/servers"] = noauth.OnlyOurs(_any_server, conf)
    return server.Server(conf, _mounted(mounts), host, conf.api.port)


def _mounted(mounts: dict[str, WSGIApplication]) -> WSGIApplication:
    """One application that has others at its paths; the longest path is the first."""
    places = sorted(mounts.items(), key=lambda mount: -len(mount[0]))

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        for place, application in places:
            prefix = place.rstrip("/")
            if path == prefix or path.startswith(f"{prefix}/"):
                inside = {"SCRIPT_NAME": prefix, "PATH_INFO": path[len(prefix) :]}
                return application({**environ, **inside}, start_response)
        return webob.exc.HTTPNotFound()(environ, start_response)

    return answer


def _any_server(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer in place of Nova: every uuid is a server.

    ``openstack accelerator arq bind`` asks Nova for the server, at the one endpoint it is given.
    """
    name = environ["PATH_INFO"].strip("/")
    if environ["REQUEST_METHOD"] != "GET" or not uuidutils.is_uuid_like(name):
        error = errors.NotFound("There is no Nova here: name a server by its uuid.")
        version = versions.settled(environ.get(versions.ENVIRON_KEY))
        return faults.response(error, environ, version)(environ, start_response)
    answer = webob.Response(json={"server": {"id": name, "name": name}})
    return answer(environ, start_response)


def own_url(host: str, port: int) -> str:
    """The URL at which a process that listens on ``host`` reaches itself."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.strip("[]"))
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host.strip('[]')}]:{port}" if ":" in host else f"http://{host}:{port}"


def _reach_without_proxy(url: str) -> None:
    """Send requests to ourselves past the proxy that the environment may name."""
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    host = url.removeprefix("http://").rpartition(":")[0].strip("[]")
    os.environ["no_proxy"] = ",".join(filter(None, [others, host]))


class _ReadyMessage:
    """Prints its text once the parts before it have started."""

    def __init__(self, text: str) -> None:
        self._text = text

    def start(self) -> None:
        print(self._text, flush=True)

    def stop(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    sys.exit(main())
