# SPDX-License-Identifier: Apache-2.0
"""Kept HTTP clients of the services we call: one keystoneauth adapter a process and service.

Keeping it keeps its token and its connections, so that a call costs one request. Every call carries
the id of the API request that this thread acts for, which is then in the other service's log too.
"""

from __future__ import annotations

import threading
from typing import Any

import requests
from keystoneauth1 import adapter as ka_adapter
from keystoneauth1 import exceptions as ka_exc
from keystoneauth1 import loading
from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg import metrics


class _Adapter(ka_adapter.Adapter):
    def request(self, url: str, method: str, **kwargs: Any) -> requests.Response:
        current = oslo_context.get_current()
        if current is not None:
            headers = {"X-OpenStack-Request-ID": current.global_id}
            kwargs["headers"] = headers | (kwargs.get("headers") or {})
        labels = {"service": str(self.service_type), "method": method, "status": "none"}
        with metrics.observed(metrics.CLIENT_SECONDS, **labels) as seen:
            try:
                response = super().request(url, method, **kwargs)
            except ka_exc.HttpError as exc:
                seen["status"] = metrics.status_class(exc.http_status)
                raise
            seen["status"] = metrics.status_class(response.status_code)
        return response


class _Loader(loading.adapter.Adapter):
    @property
    def plugin_class(self) -> type[ka_adapter.Adapter]:
        return _Adapter


_lock = threading.Lock()
#: By configuration, which cannot be hashed, and group. The configuration is kept beside its
#: adapter so that its id stays its own.
_adapters: dict[tuple[int, str], tuple[cfg.ConfigOpts, ka_adapter.Adapter]] = {}


def adapter(conf: cfg.ConfigOpts, group: str) -> ka_adapter.Adapter:
    """The adapter that the options of ``group`` describe, made at the first call."""
    with _lock:
        key = (id(conf), group)
        if key not in _adapters:
            _adapters[key] = conf, _load(conf, group)
        return _adapters[key][1]


def _load(conf: cfg.ConfigOpts, group: str) -> ka_adapter.Adapter:
    auth = loading.load_auth_from_conf_options(conf, group)
    session = loading.load_session_from_conf_options(conf, group, auth=auth)
    return _Loader().load_from_conf_options(conf, group, session=session, auth=auth)


def configured(conf: cfg.ConfigOpts, group: str) -> bool:
    """Whether the options of ``group`` say how to reach the service."""
    return conf[group].auth_type is not None
