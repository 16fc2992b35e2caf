# SPDX-License-Identifier: Apache-2.0
"""Signatures of images, as Nova and Glance verify them: by certificates in the key manager."""

from __future__ import annotations

import http
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg.common import errors
from cyborg.peers import answers

_CHUNK = 1024 * 1024
#: The first HTTP status of server errors.
_SERVER_ERROR = 500
#: Their phrases: castellan shows nothing else of an answer of Vault.
_PHRASES = frozenset(status.phrase for status in http.HTTPStatus if status >= _SERVER_ERROR)
#: Further errors if nothing answers, or something else, such as a proxy. OSError is not among them:
#: requests raises one for an address that can never be right, too.
_NO_ANSWER = (
    answers.Unusable,
    ConnectionError,
    TimeoutError,
    ka_exc.ConnectionError,
    requests.ConnectionError,
    requests.JSONDecodeError,
    requests.Timeout,
)
#: And if what answers is no key manager. A ValueError may be of an address that cannot be right.
_ODD = (LookupError, TypeError, AttributeError, RecursionError)
#: Properties of a signed image that cursive is given.
_PROPERTIES = (
    "img_signature_certificate_uuid",
    "img_signature_hash_method",
    "img_signature",
    "img_signature_key_type",
)


class BadSignature(errors.CyborgError):
    """The data is not what was signed, or the signature cannot be verified."""


class NoKeyManager(errors.CyborgError):
    """The key manager does not answer at the moment."""


def verify(path: pathlib.Path, signature: Mapping[str, str], trusted: Sequence[str]) -> None:
    """Verify that the file was signed with the key of the certificate named in ``signature``.

    The certificate must be valid now, whenever the file was signed.
    If ``trusted`` has ids of certificates, one of them must have signed that certificate.

    :raises BadSignature: it was not, or it cannot be verified
    :raises NoKeyManager: it cannot be verified now
    :raises OSError: the file cannot be read
    """
    # Imported only for a signed image: these libraries are large.
    from cryptography import exceptions as crypto_exc  # noqa: PLC0415

    for missing in sorted(set(_PROPERTIES) - signature.keys()):
        raise BadSignature(f"the image has no property {missing}")
    try:
        with answers.within(None):
            verifier = _verifier(signature, trusted)
    except BadSignature:
        raise
    except Exception as exc:
        # Key managers differ in what they raise.
        is_now = isinstance(exc, _ODD) or _is_unanswered(exc)
        kind = NoKeyManager if is_now else BadSignature
        raise kind(f"{type(exc).__name__}: {exc}") from exc
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            verifier.update(piece)
    try:
        verifier.verify()
    except crypto_exc.InvalidSignature as exc:
        raise BadSignature("the data differs from the signed data") from exc
    except Exception as exc:
        # For example, the key is too small for the hash.
        raise BadSignature(f"{type(exc).__name__}: {exc}") from exc


def _verifier(signature: Mapping[str, str], trusted: Sequence[str]) -> Any:
    """A verifier of cursive's, which gets the data and then verifies the signature."""
    from cursive import certificate_utils, signature_utils  # noqa: PLC0415 - as above

    certificate = signature["img_signature_certificate_uuid"]
    caller = _caller()
    for each in trusted:
        try:
            signature_utils.get_certificate(caller, each)
        except Exception as exc:
            # cursive ignores a certificate that it cannot get, even if only for now.
            if _is_unanswered(exc):
                raise
    if trusted:
        certificate_utils.verify_certificate(caller, certificate, list(trusted))
    # cursive looks at the dates only together with those who are trusted.
    elif not certificate_utils.is_within_valid_dates(
        signature_utils.get_certificate(caller, certificate)
    ):
        raise BadSignature(f"certificate {certificate} is not valid now")
    return signature_utils.get_verifier(
        caller, **{each: signature[each] for each in _PROPERTIES}
    )


def _is_unanswered(exc: BaseException | None) -> bool:
    """True if the cause is a request without an answer, or with a server error."""
    while exc is not None:
        # barbicanclient has an exception for each status.
        status = getattr(exc, "http_status", None) or getattr(exc, "status_code", None)
        is_server_error = isinstance(status, int) and status >= _SERVER_ERROR
        if is_server_error or isinstance(exc, _NO_ANSWER) or str(exc) in _PHRASES:
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _caller() -> object:
    """The credentials for the key manager of ``[key_manager]``, if there are any."""
    from castellan.common import utils  # noqa: PLC0415 - as above

    # cursive uses the key manager of the global configuration. In an agent there is no other.
    conf = cfg.CONF
    conf.register_opts(utils.credential_opts, group=utils.OPT_GROUP)
    if conf.key_manager.auth_type:
        return utils.credential_factory(conf=conf)
    return oslo_context.RequestContext()
