# SPDX-License-Identifier: Apache-2.0
"""The connection of openstacksdk to Nova, Placement and Glance, made from ``cyborg.conf``.

It is kept, and with it the tokens and the TCP connections, so that a call costs one request. Every
call carries the id of the API request that this thread acts for, so that the other service logs it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import requests
from keystoneauth1 import exceptions as ka_exc
from keystoneauth1 import loading as ka_loading
from keystoneauth1 import session as ka_session
from openstack import connection as sdk_connection
from openstack import proxy
from openstack.identity.v3 import _proxy as identity
from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg import metrics
from cyborg.common import faster
from cyborg.peers import answers

#: TCP connections to a service that are kept. More than 10, the default of requests, are used at
#: the same time by a busy conductor: each one above would be closed after its call, with a WARNING.
_KEPT = 100


class Proxy(proxy.Proxy):
    """A service's HTTP verbs, measured. An error status raises only with ``raise_exc``."""

    def request(self, url: str, method: str, *args: Any, **kwargs: Any) -> requests.Response:
        """Send one request, with the path and the HTTP method that it begins with."""
        current = oslo_context.get_current()
        if current is not None:
            kwargs.setdefault("global_request_id", current.global_id)
        # The SDK's default was 1 for some time, whatever the options say.
        kwargs.setdefault("connect_retries", self.connect_retries or 0)
        labels = {"service": str(self.service_type), "method": method, "status": "none"}
        timeout = kwargs.get("timeout", self.session.timeout)
        with metrics.observed(metrics.CLIENT_SECONDS, **labels) as seen, answers.within(timeout):
            try:
                with answers.reading(f"{self.service_type} or Keystone"):
                    response = super().request(url, method, *args, **kwargs)
            except ka_exc.HttpError as exc:
                seen["status"] = metrics.status_class(exc.http_status)
                raise
            seen["status"] = metrics.status_class(response.status_code)
        return response


class Keystone(Proxy, identity.Proxy):
    """Keystone's resources too, which oslo.limit asks for."""


class ServicesConnection(sdk_connection.Connection):
    """One connection for all services, each as its own group of options describes it.

    The SDK would make the proxies itself. But then they would share the credentials and TLS files
    of one group, not know ``version``, and ask each service for its versions before the first call.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(session=ka_session.Session(), app_name="cyborg")
        self._conf = conf
        self._of_groups: dict[str, Proxy] = {}

    def proxy(self, group: str) -> Proxy:
        """The proxy that the options of ``group`` describe, made at the first call."""
        if group not in self._of_groups:
            auth = ka_loading.load_auth_from_conf_options(self._conf, group)
            session = ka_loading.load_session_from_conf_options(
                self._conf, group, auth=auth, session=_session(group)
            )
            options: dict[str, Any] = {}
            ka_loading.adapter.process_conf_options(self._conf[group], options)
            kind: type[Proxy] = Proxy
            owner: sdk_connection.Connection = self
            if group == "oslo_limit":
                kind, options = Keystone, options | {"service_type": "identity", "version": "3"}
                owner = sdk_connection.Connection(session=session)
            made = self._of_groups[group] = kind(session, **options)
            made._connection = owner  # noqa: SLF001 - as the SDK does it
        return self._of_groups[group]

    def close(self) -> None:
        """Close the TCP connections to every service."""
        super().close()
        for made in self._of_groups.values():
            made.session.session.close()


class _Session(requests.Session):
    """Takes no password from ``~/.netrc``, since what a service may do is said in its options."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.auth = _as_it_is
        self._group = group
        faster.read_environment_once(self)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send one request, in the API as one of those for which there is a place."""
        caller: Any = oslo_context.get_current()
        places = getattr(caller, "places", None)
        place = places.take(self._group, caller.project_id) if places else contextlib.nullcontext()
        with place:
            return super().send(request, **options)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """The credentials of a request: those that keystoneauth has given it."""
    return request


def _session(group: str) -> requests.Session:
    """A session as keystoneauth makes it, but with a connection to keep for each thread."""
    session = _Session(group)
    for scheme in list(session.adapters):
        session.mount(scheme, ka_session.TCPKeepAliveAdapter(pool_maxsize=_KEPT))
    return session
