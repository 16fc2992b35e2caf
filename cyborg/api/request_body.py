# SPDX-License-Identifier: Apache-2.0
"""The reader before every controller: it checks the URL, and reads the body with a limit.

Nothing behind it reads the body's bytes. They become data when an operation asks for
:attr:`RequestBody.data`, after the policy check.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from oslo_config import cfg

from cyborg.api import faults, versions
from cyborg.common import errors
from cyborg.peers import answers

#: The key in the WSGI environment under which controllers find the :class:`RequestBody`.
ENVIRON_KEY = "cyborg.body"

#: Bytes of the largest body that is read although it is refused, and how many at a time.
_SKIPPED_MAX = 1024 * 1024
_PIECE = 64 * 1024

#: Digits of the longest number: longer ones fit no field and are slow to convert.
_DIGITS_MAX = 18

#: A text, maybe without its end, or a bracket. Possessive, so that no text is scanned twice.
_TEXT_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_SURROGATE = re.compile("[\ud800-\udfff]")


class RequestReader:
    """WSGI middleware that refuses malformed URLs and large bodies, and keeps the body."""

    def __init__(self, app: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._app = app
        self._conf = conf

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer with the fault, or let the application answer."""
        try:
            check_url(environ)
            body = RequestBody(
                content_type=environ.pop("CONTENT_TYPE", ""),
                content=_read(
                    environ, self._conf.api.max_request_body_size, self._conf.api.request_timeout
                ),
                max_depth=self._conf.api.max_json_depth,
            )
        except errors.CyborgError as error:
            version = versions.settled(environ.get(versions.ENVIRON_KEY))
            return faults.response(error, environ, version)(environ, start_response)
        environ[ENVIRON_KEY] = body
        environ["CONTENT_LENGTH"] = "0"
        with answers.within(answers.LONGEST):
            return self._app(environ, start_response)


def check_url(environ: Mapping[str, Any]) -> None:
    """Raise Invalid if path or query are no UTF-8, or have a NUL."""
    try:
        # Where we are mounted is a part of the URLs in answers.
        environ.get("SCRIPT_NAME", "").encode("latin-1").decode()
        path = environ.get("PATH_INFO", "").encode("latin-1").decode()
        # Some servers pass on bytes that the client has not encoded.
        sent = environ.get("QUERY_STRING", "").encode("latin-1")
        query = urllib.parse.unquote_to_bytes(sent).decode()
    except UnicodeError as exc:
        raise errors.Invalid("The URL must be percent-encoded UTF-8.") from exc
    if "\0" in path or "\0" in query:
        raise errors.Invalid("The URL must not contain NUL characters.")


def _read(environ: WSGIEnvironment, limit: int, seconds: float) -> bytes:
    """The bytes of the body, which is read up to the limit only, and for so long at most."""
    size = _declared_size(environ)
    if size == 0:
        return b""
    too_large = size is not None and size > limit
    wanted = limit + 1 if size is None else size
    if wanted > max(limit + 1, _SKIPPED_MAX):
        wanted = 0
    content, arrived = bytearray(), 0
    with _in_time(environ, seconds) as is_late:
        for part in _parts(environ, wanted, in_chunks=size is None):
            arrived += len(part)
            # Under a server that keeps connections the next request is behind what is refused.
            content += b"" if too_large else part
            if is_late():
                break
    if too_large or len(content) > limit:
        raise errors.RequestTooLarge(
            f"The request body must have at most {limit} bytes; see [api] max_request_body_size."
        )
    if is_late() and arrived != size:
        raise errors.RequestLate(f"The request body must arrive within {seconds:g} seconds.")
    return bytes(content)


def _declared_size(environ: WSGIEnvironment) -> int | None:
    """Bytes of the body; None if it comes in chunks."""
    length = environ.get("CONTENT_LENGTH") or ""
    if not length:
        return None if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower() else 0
    if not re.fullmatch(r"[0-9]{1,18}", length):
        raise errors.Invalid("Content-Length must be a whole number.")
    return int(length)


@contextlib.contextmanager
def _in_time(environ: WSGIEnvironment, seconds: float) -> Iterator[Callable[[], bool]]:
    """While the block runs, a body may be waited for so long; gives whether the time is over.

    :raises Invalid: the server finds that it is no body
    """
    end = time.monotonic() + seconds

    def is_late() -> bool:
        return time.monotonic() >= end

    with contextlib.ExitStack() as stack:
        # Behind the built-in server all of it is there. Others wait for each byte in a thread.
        one = _socket_of(environ, stack)
        if one:
            timer = threading.Timer(seconds, _stop_reading, [one])
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)
        try:
            yield is_late
        except OSError as exc:
            if not is_late():
                raise errors.Invalid(
                    "The body is malformed or late, or a chunk of it is larger than the server "
                    "takes."
                ) from exc
        finally:
            if one and is_late():
                # The server would read on, and wait, to find the next request.
                _stop_reading(one)


def _socket_of(environ: WSGIEnvironment, stack: contextlib.ExitStack) -> socket.socket | None:
    """The connection, of those servers that show it."""
    uwsgi: Any = sys.modules.get("uwsgi")
    if uwsgi is None:
        return environ.get("gunicorn.socket")
    with contextlib.suppress(OSError):
        return stack.enter_context(socket.socket(fileno=os.dup(uwsgi.connection_fd())))
    return None


def _stop_reading(one: socket.socket) -> None:
    """Let the server find that nothing more comes."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RD)


def _parts(environ: WSGIEnvironment, count: int, *, in_chunks: bool) -> Iterator[bytes]:
    """At least so many bytes of the body, or all of it."""
    uwsgi: Any = sys.modules.get("uwsgi")
    # uWSGI, whose module is in its own processes only, takes a body in chunks for none otherwise.
    chunked = in_chunks and uwsgi is not None
    while count > 0:
        part = uwsgi.chunked_read() if chunked else environ["wsgi.input"].read(min(count, _PIECE))
        if not part:
            return
        count -= len(part)
        yield part


class RequestBody:
    """The body of one request, not yet parsed."""

    def __init__(self, *, content_type: str, content: bytes, max_depth: int) -> None:
        self._content_type = content_type
        self._content = content
        self._max_depth = max_depth

    def is_empty(self) -> bool:
        """True if the request has no body."""
        return not self._content

    def data(self, name: str) -> Any:
        """The JSON document that the body is; ``name`` is what messages call it.

        :raises UnsupportedMediaType: the body is not declared as JSON
        :raises Invalid: there is no body, or it is not acceptable JSON
        """
        if not self._content:
            raise errors.Invalid(f'Missing argument: "{name}": send a JSON body.')
        media_type, _, parameters = self._content_type.partition(";")
        if media_type.strip().lower() != "application/json" or not _is_utf8(parameters):
            raise errors.UnsupportedMediaType(
                f"Unknown mimetype: {self._content_type[:100]}: send application/json in UTF-8."
            )
        data = decode(self._content, self._max_depth)
        if data is None:
            raise errors.Invalid("The request body must not be null.")
        return data


def _is_utf8(parameters: str) -> bool:
    charset = re.search(r'charset\s*=\s*"?([^\s;"]*)', parameters, re.IGNORECASE)
    return charset is None or charset[1].lower() in {"utf-8", "utf8", "us-ascii"}


def decode(content: bytes, max_depth: int) -> Any:
    """The data of a JSON text.

    :raises Invalid: it is not JSON, is nested too deep, has a key twice in an object, or has a
        number or character that cannot be stored
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as exc:
        raise errors.Invalid("The request body must be UTF-8.") from exc
    _check_depth(text, max_depth)
    try:
        data = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_number(int),
            parse_float=_number(float),
        )
    except (json.JSONDecodeError, RecursionError) as exc:
        raise errors.Invalid(f"Request is not in valid JSON format: {exc}") from exc
    _check_characters(text, data)
    return data


def _check_depth(text: str, limit: int) -> None:
    depth = 0
    for match in _TEXT_OR_BRACKET.finditer(text):
        depth += _STEPS.get(match[0], 0)
        if depth > limit:
            raise errors.Invalid(f"The request body must be nested at most {limit} levels deep.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise errors.Invalid(f'An object of the request body has the key "{key[:100]}" twice.')
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise errors.Invalid(f"The request body must not contain {name}: JSON has no such number.")


def _number(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        # What is left, 18 digits and an exponent of two, is never infinite.
        if len(text) > _DIGITS_MAX or re.search(r"[eE][+-]?[0-9]{3}", text):
            raise errors.Invalid(f"The number {text[:40]} of the request body is too long.")
        return convert(text)

    return parse


def _check_characters(text: str, data: Any) -> None:
    # Only an escape can produce them, so most bodies need no search.
    if "\\u" not in text:
        return
    rest = [data]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            if "\0" in item or _SURROGATE.search(item):
                raise errors.Invalid(
                    "The request body must not contain NUL characters or lone surrogates."
                )
        elif isinstance(item, dict):
            rest.extend(item)
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)
