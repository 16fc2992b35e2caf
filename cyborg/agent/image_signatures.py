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

from cyborg import errors, glance

_CHUNK = 1024 * 1024
#: The first HTTP status that says that the fault is the server's.
_BROKEN = 500
#: Its words, which are all that castellan tells of an answer of Vault.
_WORDS = frozenset(status.phrase for status in http.HTTPStatus if status >= _BROKEN)
#: What else may be raised because nobody answers, or something else does, such as a proxy. Most
#: that requests raises is an OSError, and so is the fault of an address that never can be right.
_NO_ANSWER = (
    ConnectionError,
    TimeoutError,
    ka_exc.ConnectionError,
    requests.ConnectionError,
    requests.JSONDecodeError,
    requests.Timeout,
)


class BadSignature(errors.CyborgError):
    """The data is not what was signed, or that cannot be verified."""


class NoKeyManager(errors.CyborgError):
    """The key manager does not answer at the moment."""


def verify(path: pathlib.Path, signature: Mapping[str, str], trusted: Sequence[str]) -> None:
    """Verify that the file is what was signed with the key of the certificate that is named.

    That certificate must be signed by one of those with the ids ``trusted``, if there are any.

    :raises BadSignature: it is not, or nobody can tell
    :raises NoKeyManager: nobody can tell now
    :raises OSError: the file cannot be read
    """
    # Loaded only where something is signed: they and what they need are large.
    from cryptography import exceptions as crypto_exc  # noqa: PLC0415

    missing = [key for key in glance.SIGNATURE if not signature.get(key)]
    if missing:
        raise BadSignature(f"the image has no property {missing[0]}")
    try:
        verifier = _verifier(signature, trusted)
    except Exception as exc:
        # Key managers differ in what they raise.
        kind = NoKeyManager if _is_unanswered(exc) else BadSignature
        raise kind(f"{type(exc).__name__}: {exc}") from exc
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            verifier.update(piece)
    try:
        verifier.verify()
    except crypto_exc.InvalidSignature as exc:
        raise BadSignature("the data is not what was signed") from exc
    except Exception as exc:
        # Such as a key that is too small for such a hash.
        raise BadSignature(f"{type(exc).__name__}: {exc}") from exc


def _verifier(signature: Mapping[str, str], trusted: Sequence[str]) -> Any:
    """What the data is given to, and tells then whether that was signed."""
    from cursive import certificate_utils, signature_utils  # noqa: PLC0415 - as above

    certificate = signature["img_signature_certificate_uuid"]
    caller = _caller()
    for each in trusted:
        try:
            signature_utils.get_certificate(caller, each)
        except Exception as exc:
            # To cursive one that it cannot get now is none that is trusted.
            if _is_unanswered(exc):
                raise
    if trusted:
        certificate_utils.verify_certificate(caller, certificate, list(trusted))
    return signature_utils.get_verifier(
        context=caller,
        img_signature_certificate_uuid=certificate,
        img_signature_hash_method=signature["img_signature_hash_method"],
        img_signature=signature["img_signature"],
        img_signature_key_type=signature["img_signature_key_type"],
    )


def _is_unanswered(exc: BaseException | None) -> bool:
    """Whether that was raised because a request had no answer, or one of a broken server."""
    while exc is not None:
        # barbicanclient has an error of its own for each status.
        status = getattr(exc, "http_status", None) or getattr(exc, "status_code", None)
        is_broken = isinstance(status, int) and status >= _BROKEN
        if is_broken or isinstance(exc, _NO_ANSWER) or str(exc) in _WORDS:
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _caller() -> object:
    """How we log in to the key manager: as ``[key_manager]`` says, if it does."""
    from castellan.common import utils  # noqa: PLC0415 - as above

    # cursive asks the key manager of the global configuration. In an agent there is no other.
    conf = cfg.CONF
    conf.register_opts(utils.credential_opts, group=utils.OPT_GROUP)
    if conf.key_manager.auth_type:
        return utils.credential_factory(conf=conf)
    return oslo_context.RequestContext()
