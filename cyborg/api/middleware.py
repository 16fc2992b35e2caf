# SPDX-License-Identifier: Apache-2.0
"""Factories for the paste file: each takes the application's configuration, not a global one.

Paste passes only texts to a factory, so :func:`building` lends the configuration to the factories
while a pipeline is built.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, cast
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from keystoneauth1 import exceptions as ka_exc
from keystonemiddleware import auth_token
from keystonemiddleware import opts as auth_token_opts
from keystonemiddleware.auth_token import _exceptions as ksm_exc
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_messaging import opts as messaging_opts
from oslo_middleware import cors as oslo_cors
from oslo_middleware import healthcheck as oslo_health
from oslo_middleware import http_proxy_to_wsgi as oslo_proxy
from oslo_middleware import request_id as oslo_request_id
from oslo_middleware.healthcheck import opts as health_opts

from cyborg.api import faults, health, request_metrics, versions
from cyborg.api import noauth as no_auth
from cyborg.common import errors, faster, needs
from cyborg.peers import answers

LOG = logging.getLogger(__name__)

Filter = Callable[[WSGIApplication], WSGIApplication]

#: Paths that everybody may read: the documents about the API itself.
PUBLIC_PATHS = frozenset({"/", "/v2", "/v2.json", "/v2/openapi.json"})

#: The map of audit events that is used if the operator has none.
SHIPPED_AUDIT_MAP = pathlib.Path(__file__).with_name("api_audit_map.conf")
#: oslo.log keeps back what keystonemiddleware's own logger says, if it is no warning.
_AUDIT_LOG = "cyborg.audit"
_NOTIFICATIONS = "oslo_messaging_notifications"

HEALTHCHECK_PATH = "/healthcheck"

#: The id that another service sends with a request, and the header of answers with our own.
_GIVEN_ID = f"HTTP_{oslo_request_id.INBOUND_HEADER.upper().replace('-', '_')}"
_ANSWERED_ID = oslo_request_id.HTTP_RESP_HEADER_REQUEST_ID

_lent: contextvars.ContextVar[cfg.ConfigOpts] = contextvars.ContextVar("conf")


@contextlib.contextmanager
def building(conf: cfg.ConfigOpts) -> Iterator[None]:
    """While the block runs, factories of the paste file build with ``conf``."""
    token = _lent.set(conf)
    try:
        yield
    finally:
        _lent.reset(token)


def lent_conf() -> cfg.ConfigOpts:
    """The configuration that a factory builds with."""
    return _lent.get()


def service_token_roles(conf: cfg.ConfigOpts) -> Collection[str]:
    """The roles that make a service token valid: it must have one of them."""
    if conf.api.auth_strategy != "keystone":
        return ("service",)
    _register_auth_token(conf)
    roles: Collection[str] = conf.keystone_authtoken.service_token_roles
    return roles


def metrics(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """Metrics of requests, if Prometheus is to get any."""
    if lent_conf().metrics.port is None:
        return lambda app: app
    return request_metrics.RequestMetrics


def cors(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """Cross-origin requests, for the origins in ``[cors]``."""
    oslo_cors.set_defaults(
        allow_headers=[
            "X-Auth-Token",
            "X-Service-Token",
            "X-OpenStack-Request-ID",
            versions.HEADER,
        ],
        expose_headers=["X-OpenStack-Request-ID", *versions.headers(versions.MAX)],
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
    )
    conf = lent_conf()
    return lambda app: faster.pass_by(oslo_cors.CORS(app, conf), app, _is_cross_origin)


def _is_cross_origin(environ: WSGIEnvironment) -> bool:
    """True if CORS may add something to the answer."""
    return "HTTP_ORIGIN" in environ or environ["REQUEST_METHOD"] == "OPTIONS"


def http_proxy_to_wsgi(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """The headers of a proxy in front of us, if ``[oslo_middleware]`` permits them."""
    conf = lent_conf()

    def is_needed(_environ: WSGIEnvironment) -> bool:
        return bool(conf.oslo_middleware.enable_proxy_headers_parsing)

    return lambda app: faster.pass_by(oslo_proxy.HTTPProxyToWSGI(app, conf), app, is_needed)


def healthcheck(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """For balancers: whether this process, its database and its broker work. Needs no token."""
    conf = lent_conf()
    conf.register_opts(health_opts.HEALTHCHECK_OPTS, group="healthcheck")
    conf.set_default("backends", list(health.BACKENDS), group="healthcheck")
    return lambda app: faster.pass_by(oslo_health.Healthcheck(app, conf), app, _is_check)


def _is_check(environ: WSGIEnvironment) -> bool:
    return bool(environ.get("PATH_INFO", "").rstrip("/") == HEALTHCHECK_PATH)


def request_id(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """Pass requests on: each has its id before the first filter."""
    return lambda app: app


def authtoken(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """Tokens are validated by Keystone, except for the documents about the API itself."""
    conf = lent_conf()
    _register_auth_token(conf)
    needs.check(conf, "keystone_authtoken")

    def wrap(app: WSGIApplication) -> WSGIApplication:
        validated = _Tokens(app, {"oslo_config_config": conf, **local_conf})
        return _Public(app, validated)

    return wrap


def audit(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """Audit events of requests, for ``[api] audit``."""
    conf = lent_conf()
    if not conf.api.audit:
        return lambda app: app
    # Only those load pycadf who need it.
    from keystonemiddleware import audit as auditing  # noqa: PLC0415

    for group, options in (*messaging_opts.list_opts(), *auditing.list_opts()):
        if group in {_NOTIFICATIONS, auditing.AUDIT_MIDDLEWARE_GROUP}:
            conf.register_opts(options, group=group)
    needs.check(conf, _NOTIFICATIONS, auditing.AUDIT_MIDDLEWARE_GROUP)
    # By default a request would wait until the broker is back.
    conf.set_default("retry", 0, group=_NOTIFICATIONS)
    map_file = conf.find_file(conf.api.audit_map_file) or str(SHIPPED_AUDIT_MAP)

    def wrap(app: WSGIApplication) -> WSGIApplication:
        return cast(
            WSGIApplication,
            auditing.AuditMiddleware(
                app,
                oslo_config_config=conf,
                audit_map_file=map_file,
                log_name=_AUDIT_LOG,
                **local_conf,
            ),
        )

    return wrap


def noauth(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """No validation: the caller is who its headers say."""
    return functools.partial(no_auth.NoAuth, conf=lent_conf())


def http_basic(_defaults: dict[str, str], **local_conf: str) -> Filter:
    """Names and passwords of a file: each is an administrator."""
    # Only those load bcrypt who need it.
    from cyborg.api import http_basic as by_password  # noqa: PLC0415

    return functools.partial(by_password.HttpBasic, conf=lent_conf())


def _register_auth_token(conf: cfg.ConfigOpts) -> None:
    for group, options in auth_token_opts.list_auth_token_opts():
        conf.register_opts(options, group=group)
    # Without it any valid token would count as a service token.
    conf.set_default("service_token_roles_required", True, group="keystone_authtoken")
    # Without it an application credential restricted to some requests of this API permits none.
    conf.set_default("service_type", versions.SERVICE_TYPE, group="keystone_authtoken")
    # Without it a Keystone that accepts connections and never answers would block a thread.
    conf.set_default("http_connect_timeout", 30, group="keystone_authtoken")


class _TokenServer:
    """Keystone as keystonemiddleware asks it: by no more requests at once than have a place.

    So while it does not answer, other threads serve what needs no validation. A place is taken
    for all of a validation: keystoneauth waits for locks and between attempts too.
    """

    def __init__(self, server: Any, threads: int) -> None:
        self._server = server
        self._places = answers.Places(threads, of_one_service=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def verify_token(self, *given: Any, **options: Any) -> Any:
        """The facts that Keystone knows of a token.

        :raises InvalidToken: it does not know the token
        :raises Unusable: too many requests wait for it
        """
        refused: ksm_exc.InvalidToken | None = None
        found = None
        with self._places.take("Keystone", None):
            try:
                found = self._server.verify_token(*given, **options)
            except ksm_exc.InvalidToken as exc:
                # That is an answer as well.
                refused = exc
        if refused is not None:
            raise refused
        return found


class _Tokens(auth_token.AuthProtocol):
    """Validates the tokens of a request within one deadline, whatever Keystone answers."""

    def _create_identity_server(self) -> Any:
        return _TokenServer(super()._create_identity_server(), lent_conf().api.threads)

    def process_request(self, request: Any) -> Any:
        """Validate them before the request is passed on.

        :raises ServiceUnavailable: Keystone does not say whether they are valid
        """
        try:
            with answers.within(None), answers.reading("Keystone"):
                return super().process_request(request)
        except ka_exc.ClientException as exc:
            raise errors.ServiceUnavailable("Keystone validates no tokens now.") from exc


class Answered:
    """Outside all filters: each request has an id, an answer, and a line in the log if refused.

    It does what oslo.middleware's filter does, but makes no objects of request and answer.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        given = environ.get(_GIVEN_ID, "")
        if re.match(oslo_request_id.ID_FORMAT, given):
            environ[oslo_request_id.GLOBAL_REQ_ID] = given
        own = environ[oslo_request_id.ENV_REQUEST_ID] = oslo_context.generate_request_id()
        said = environ[faults.ENVIRON_KEY] = list[faults.Known]()

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            if not any(name.lower() == _ANSWERED_ID for name, _ in headers):
                headers = [*headers, (_ANSWERED_ID, own)]
            if status >= "400" and not _is_check(environ):
                _log_refusal(environ, status, said)
            return start_response(status, headers, *rest)

        try:
            return self._app(environ, start)
        except Exception as exc:  # noqa: BLE001 - it is logged there
            version = versions.settled(environ.get(versions.ENVIRON_KEY))
            return faults.response(exc, environ, version)(environ, start)


def _log_refusal(environ: WSGIEnvironment, status: str, said: list[faults.Known]) -> None:
    own = environ[oslo_request_id.ENV_REQUEST_ID]
    if getattr(oslo_context.get_current(), "request_id", None) != own:
        # What this thread has logged last was of another request.
        oslo_context.RequestContext(request_id=own)
    asked = f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}"
    why = " ".join(str(each) for each in said)
    # While the database is away, one line says so for all requests.
    is_told = any(isinstance(each, errors.DatabaseUnreachable) for each in said)
    level = logging.DEBUG if is_told else logging.INFO
    LOG.log(level, "Request %s was answered %s: %r %.500r", own, status, asked[:200], why)


class _Public:
    """Serves public paths without a token: they show nothing of any project."""

    def __init__(self, app: WSGIApplication, validated: WSGIApplication) -> None:
        self._app = app
        self._validated = validated

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "").rstrip("/") or "/"
        app = self._app if path in PUBLIC_PATHS else self._validated
        return app(environ, start_response)
