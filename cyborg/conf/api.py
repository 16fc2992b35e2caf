# SPDX-License-Identifier: Apache-2.0
"""Options of the REST API."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.HostAddressOpt(
        "host_ip",
        default="127.0.0.1",
        help="Address on which the built-in server listens.",
    ),
    cfg.PortOpt("port", default=6666, help="Port on which the built-in server listens."),
    cfg.IntOpt(
        "api_workers",
        default=10,
        min=1,
        help="Threads with which the built-in server answers requests. There is one process.",
    ),
    cfg.FloatOpt(
        "bind_wait",
        default=8.0,
        min=0.0,
        max=60.0,
        mutable=True,
        help="Seconds for which a list of an instance's accelerator requests (instance=...) for "
        "another service waits while some are being bound. Nova asks for it once and then waits "
        "for events, of which none reaches it while it unshelves a server: a bind that takes "
        "longer than this lets that fail, five minutes later. At most half as many requests as "
        "there are api_workers wait at a time in a process, here or for PATCH "
        "/v2/deployables/{uuid}/program; others are answered at once. 0 answers all at once. When "
        "cyborg-api stops it waits ten seconds for the requests that it has begun.",
    ),
    cfg.BoolOpt(
        "enable_ssl_api",
        default=False,
        help="Let the built-in server speak HTTPS, with the certificate that [ssl] names.",
    ),
    cfg.URIOpt(
        "public_endpoint",
        mutable=True,
        help="URL under which clients reach the API, for the links in answers; for example "
        "https://cloud.example/accelerator. Unset, links follow the request: its host, the path "
        "under which the WSGI application is mounted, and proxy headers where "
        "[oslo_middleware] enable_proxy_headers_parsing permits them.",
    ),
    cfg.StrOpt(
        "api_paste_config",
        default="api-paste.ini",
        help="Paste file with the middleware pipelines: an absolute path, a file in a "
        "configuration directory, or the file of that name that ships with Cyborg.",
    ),
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "Tokens are validated by keystonemiddleware."),
            (
                "noauth",
                (
                    "Nothing is validated: identity is taken from the headers that "
                    "keystonemiddleware would set (X-User-Id, X-Project-Id, X-Roles, "
                    "X-Service-Roles), and a request with none of them is an administrator. For "
                    "tests and for a machine of one's own only."
                ),
            ),
        ],
        help="How callers are identified.",
    ),
    cfg.BoolOpt(
        "noauth_allow_remote",
        default=False,
        help="Let the built-in server listen on an address other than loopback while "
        "auth_strategy is noauth. Whoever reaches that address is an administrator.",
    ),
    cfg.IntOpt(
        "max_limit",
        default=1000,
        min=1,
        mutable=True,
        help="Items on a page of a list from microversion 2.4: the most that a request can ask "
        "for, and what it gets when it does not say. Older microversions answer with whole lists.",
    ),
    cfg.IntOpt(
        "max_request_body_size",
        default=114688,
        min=1024,
        mutable=True,
        help="Bytes of the largest request body accepted; a larger one is answered with 413.",
    ),
    cfg.IntOpt(
        "max_json_depth",
        default=32,
        min=4,
        mutable=True,
        help="How deep lists and objects may be nested in a request body.",
    ),
]
