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
        "threads",
        default=10,
        min=1,
        help="Number of threads of the built-in server, which runs in one process. Under another "
        "WSGI server give the threads of one of its processes. Requests that wait for binds or "
        "programs use at most half of them.",
    ),
    cfg.FloatOpt(
        "request_timeout",
        default=20.0,
        min=0.1,
        max=3600.0,
        mutable=True,
        help="Seconds within which the whole of a request, headers and body, must arrive at the "
        "built-in server. A later one is answered with 408. A request that has not arrived holds "
        "no thread. A connection without a request is closed after this time. A client has this "
        "time, and one second more for each 16 KiB, to take an answer; then its connection is "
        "closed. Under uWSGI and gunicorn, a body must arrive within this time after the headers.",
    ),
    cfg.IntOpt(
        "max_connections_per_peer",
        default=64,
        min=0,
        mutable=True,
        help="Connections from one address (of IPv6: from one network of 64 bits) to the built-in "
        "server. If there are more, the oldest on which no whole request has arrived is closed; if "
        "there is none, the newest is answered with 503. A warning tells of it. Behind a proxy "
        "all clients have one address. With 0 there is no limit for one address, but one of 512 "
        "for all connections.",
    ),
    cfg.FloatOpt(
        "bind_wait",
        default=8.0,
        min=0.0,
        max=60.0,
        mutable=True,
        help="Seconds that a request of another service for an instance's accelerator requests "
        "(instance=...) waits while some of them are being bound. Nova lists them once and then "
        "waits for events, but receives none while it unshelves a server: if a bind takes longer "
        "than this, unshelving fails five minutes later. Nova's requests for a server also wait "
        "so long for a database that is away. In each process at most half of threads requests "
        "wait, for binds or programs; others are answered at once. "
        "With 0 no request waits. When cyborg-api stops, it gives the requests in progress ten "
        "seconds to end.",
    ),
    cfg.BoolOpt(
        "enable_ssl_api",
        default=False,
        help="Serve HTTPS from the built-in server, with the certificate in [ssl].",
    ),
    cfg.URIOpt(
        "public_endpoint",
        mutable=True,
        help="URL at which clients reach the API, for the links in answers; for example "
        "https://cloud.example/accelerator. If unset, links are made from the request: its host, "
        "the path at which the WSGI application is mounted, and proxy headers if "
        "[oslo_middleware] enable_proxy_headers_parsing is set.",
    ),
    cfg.StrOpt(
        "api_paste_config",
        default="api-paste.ini",
        help="Paste file with the middleware pipelines: an absolute path, or the name of a file in "
        "a configuration directory or of the file that Cyborg ships.",
    ),
    cfg.BoolOpt(
        "audit",
        default=False,
        help="Send an audit event (CADF) when a request that changes something arrives, and one "
        "when it is answered. [audit_middleware_notifications] says where they go, by default "
        "where [oslo_messaging_notifications] says. A paste file of your own needs the filter "
        "audit. Without tokens, as with auth_strategy = noauth, nothing is audited.",
    ),
    cfg.StrOpt(
        "audit_map_file",
        default="api_audit_map.conf",
        help="File that names the requests in audit events: an absolute path, or the name of a "
        "file in a configuration directory. By default the shipped file.",
    ),
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "keystonemiddleware validates tokens."),
            (
                "http_basic",
                (
                    "Each name with its password in http_basic_auth_user_file is an "
                    "administrator. For use without Keystone, and only over HTTPS."
                ),
            ),
            (
                "noauth",
                (
                    "Nothing is validated: identity is taken from the headers that "
                    "keystonemiddleware would set (X-User-Id, X-Project-Id, X-Roles, "
                    "X-Service-Roles); a request without any of them is an administrator's. Only "
                    "for tests and for a machine that nobody else uses."
                ),
            ),
        ],
        help="How callers are identified.",
    ),
    cfg.StrOpt(
        "http_basic_auth_user_file",
        default="/etc/cyborg/htpasswd",
        help="File with a name, a colon and a bcrypt digest of the password in each line, as "
        "htpasswd -B writes it, for auth_strategy = http_basic. A change has effect at once.",
    ),
    cfg.BoolOpt(
        "noauth_allow_remote",
        default=False,
        help="With auth_strategy noauth, let the built-in server listen on an address other than "
        "loopback, and serve clients on other machines, behind proxies (which add X-Forwarded-For, "
        "Forwarded, X-Real-IP or Via) and over Unix sockets under any server. Everyone who can "
        "reach the API is then an administrator. In both cases a request must name the API by an "
        "IP address, by localhost, by the name of the machine or as public_endpoint does, and web "
        "pages of other origins than [cors] allowed_origin are refused.",
    ),
    cfg.BoolOpt(
        "status_page",
        default=False,
        help="Answer browsers at / with a page that shows devices, requests and what is stuck. "
        "The page reads the API with the rights of its reader, and changes nothing. "
        "Clients that do not prefer HTML are answered as without it. With auth_strategy = keystone "
        "the option has no effect. cyborg-standalone has it on.",
    ),
    cfg.IntOpt(
        "max_limit",
        default=1000,
        min=1,
        mutable=True,
        help="Items on one page of a list, as maximum and as default, from microversion 2.4 on. "
        "Older microversions return whole lists.",
    ),
    cfg.IntOpt(
        "max_whole_list",
        default=10000,
        min=1,
        mutable=True,
        help="Items of the longest list that is returned whole, up to microversion 2.3. A longer "
        "one is answered with 400 and the advice to ask for pages.",
    ),
    cfg.IntOpt(
        "max_unbound_arqs",
        default=1000,
        min=0,
        mutable=True,
        help="How many accelerator requests without an accelerator a project may have. A "
        "request for more is answered with 403. With 0 there is no limit.",
    ),
    cfg.IntOpt(
        "max_request_body_size",
        default=114688,
        min=1024,
        mutable=True,
        help="Maximum size of a request body in bytes. A larger one is answered with 413.",
    ),
    cfg.IntOpt(
        "max_json_depth",
        default=32,
        min=4,
        mutable=True,
        help="Maximum depth of nested lists and objects in a request body.",
    ),
]
