# SPDX-License-Identifier: Apache-2.0
"""The WSGI application, from its configuration."""

from __future__ import annotations

import configparser
import logging
import pathlib
from wsgiref.types import WSGIApplication

import pecan
import pecan.core
import pecan.routing
from oslo_config import cfg
from paste import deploy

from cyborg import db, notifications, rpc, work
from cyborg.api import middleware, request, request_body, status_page
from cyborg.api.controllers import root
from cyborg.common import errors, faster, needs
from cyborg.db import revision
from cyborg.policy.enforcer import Enforcer

#: The paste file that is used if the operator has none.
SHIPPED_PASTE_FILE = pathlib.Path(__file__).with_name("api-paste.ini")

LOG = logging.getLogger(__name__)

#: What the paste files of other releases consist of. Ours has the same, built in another way.
_SECTIONS_OF_ANOTHER = {
    "pipeline:main",
    "app:api_v2",
    "filter:authtoken",
    "filter:cors",
    "filter:healthcheck",
    "filter:http_proxy_to_wsgi",
    "filter:osprofiler",
    "filter:request_id",
}


class UnusablePasteFile(errors.Misconfigured):
    """The operator's paste file does not fit this release."""


def load(conf: cfg.ConfigOpts) -> WSGIApplication:
    """The application behind the middleware that the paste file names for our auth_strategy.

    Database and messaging are configured by the caller.

    :raises UnusablePasteFile: it does not say how to build the application
    """
    path = paste_file(conf)
    if is_of_another_cyborg(path):
        LOG.warning(
            "The paste file %s is that of another Cyborg and is passed over; %s is used. Remove "
            "it, or write it again from that one.",
            path,
            SHIPPED_PASTE_FILE,
        )
        path = SHIPPED_PASTE_FILE
    with middleware.building(conf):
        try:
            app = deploy.loadapp(f"config:{path}", name=conf.api.auth_strategy)
        except (LookupError, ImportError) as exc:
            raise UnusablePasteFile(
                f"The paste file {path} cannot be used: {exc}. Remove it, or make it again from a "
                f"copy of {SHIPPED_PASTE_FILE}."
            ) from exc
    return middleware.Answered(app)


def app_factory(_defaults: dict[str, str], **local_conf: str) -> WSGIApplication:
    """The application without middleware; the paste file names this function."""
    return make_app(middleware.lent_conf())


def make_app(conf: cfg.ConfigOpts) -> WSGIApplication:
    """The application without middleware."""
    faster.inspect_handlers_once(pecan.core, pecan.routing)
    enforcer = Enforcer(conf, service_token_roles=middleware.service_token_roles(conf))
    if not conf.oslo_policy.enforce_new_defaults:
        LOG.warning(
            "[oslo_policy] enforce_new_defaults = false has no effect: rules have only their new "
            "defaults. To permit more, write a policy file."
        )
    app: WSGIApplication = pecan.Pecan(
        root.RootController(with_tokens=conf.api.auth_strategy == "keystone"),
        hooks=[request.RequestHook(conf, enforcer)],
        request_cls=request.Request,
        # File extensions and trailing slashes have no meaning.
        guess_content_type_from_ext=False,
        force_canonical=False,
        use_context_locals=False,
    )
    if status_page.is_wanted(conf):
        app = status_page.StatusPage(app)
    return request_body.RequestReader(app, conf)


def configure(conf: cfg.ConfigOpts) -> None:
    """Configure database and messaging for the application of this process.

    A conductor is kicked after each transaction that leaves something for it.
    """
    needs.check(conf, *needs.CALLED)
    db.configure(conf)
    revision.check_if_reachable()
    rpc.configure(conf)
    notifications.configure(conf)
    work.wake_after_commit(rpc.kick)
    notifications.wake_after_commit(rpc.kick)


def is_usable(path: pathlib.Path, auth_strategy: str) -> bool:
    """True if the paste file says how to build the application for that strategy."""
    kinds = ("app", "composite", "filter-app", "pipeline")
    return not _sections(path).isdisjoint(f"{kind}:{auth_strategy}" for kind in kinds)


def is_of_another_cyborg(path: pathlib.Path) -> bool:
    """True if other releases ship such a file: with no part that an operator has added."""
    return {"pipeline:main", "app:api_v2"} <= _sections(path) <= _SECTIONS_OF_ANOTHER


def _sections(path: pathlib.Path) -> set[str]:
    """The names of the sections of a paste file; none if it cannot be read."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(path)
    except configparser.Error:
        return set()
    return set(parser.sections())


def paste_file(conf: cfg.ConfigOpts) -> pathlib.Path:
    """The configured file, or the one that ships with us if there is no such file."""
    found = conf.find_file(conf.api.api_paste_config)
    return pathlib.Path(found) if found else SHIPPED_PASTE_FILE
