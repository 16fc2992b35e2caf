# SPDX-License-Identifier: Apache-2.0
"""What a key manager's answer, or none, says of a signature: nothing now, or nothing ever."""

from __future__ import annotations

import time

import pytest
from castellan import key_manager
from castellan.common import utils
from castellan.key_manager import barbican_key_manager, vault_key_manager
from oslo_config import cfg

from cyborg.drivers import image_signatures
from cyborg.peers import answers
from cyborg.tests import liar as liars
from cyborg.tests import ports

SIGNATURE = {
    "img_signature": "YWJj",
    "img_signature_certificate_uuid": "2a4a1a0c-8f5a-4c70-9b64-5fb5d3f1f3a2",
    "img_signature_hash_method": "SHA-256",
    "img_signature_key_type": "RSA-PSS",
}


@pytest.fixture(scope="module")
def server():
    """It stops so slowly that all tests share it."""
    liar = liars.Liar()
    yield liar
    liar.stop()


@pytest.fixture
def liar(server):
    """What the key manager is, or is behind."""
    server.honest = {}
    server.calls.clear()
    return server


@pytest.fixture
def vault():
    """Makes a Vault at an address the key manager."""
    conf = cfg.CONF
    conf.register_opts(key_manager.key_manager_opts, group="key_manager")
    conf.register_opts(vault_key_manager._vault_opts, group="vault")

    changed = []

    def use(url: str, **options: object) -> None:
        conf.set_override("backend", "vault", group="key_manager")
        for name, value in {"vault_url": url, "root_token_id": "token", **options}.items():
            conf.set_override(name, value, group="vault")
            changed.append(name)

    yield use
    conf.clear_override("backend", group="key_manager")
    for name in changed:
        conf.clear_override(name, group="vault")


@pytest.fixture
def signed(tmp_path):
    path = tmp_path / "signed"
    path.write_bytes(b"abc")
    return path


@pytest.mark.parametrize(
    ("statuses", "trusted", "error"),
    [
        # Vault itself answers 503 while it is sealed; 502 is of a proxy before one that is down.
        *(([status], (), image_signatures.NoKeyManager) for status in (500, 502, 503, 504)),
        *(([status], (), image_signatures.BadSignature) for status in (403, 404)),
        # Who is trusted is not known while no certificate can be had.
        ([404, 503], ["gone", "trusted"], image_signatures.NoKeyManager),
    ],
)
def test_a_vault_that_refuses_would_refuse_again_and_one_that_is_broken_says_nothing_now(
    vault, signed, liar, statuses, trusted, error
):
    liar.lie = liars.Lie(statuses[0])
    liar.honest = {f"/v1/secret/data/{each}": liars.Lie(statuses[-1]) for each in trusted[1:]}
    vault(liar.url)
    with pytest.raises(error):
        image_signatures.verify(signed, SIGNATURE, trusted)
    assert len(liar.calls) >= len(statuses)


def test_a_vault_that_is_down_says_nothing_now(vault, signed):
    vault(f"http://127.0.0.1:{ports.free_port()}")

    with pytest.raises(image_signatures.NoKeyManager):
        image_signatures.verify(signed, SIGNATURE, ())


def test_certificates_that_are_not_there_are_a_fault_of_the_host(vault, signed, tmp_path):
    """It is no request without an answer: none was made."""
    vault(
        f"https://127.0.0.1:{ports.free_port()}",
        use_ssl=True,
        ssl_ca_crt_file=str(tmp_path / "absent"),
    )

    with pytest.raises(image_signatures.BadSignature, match="certificate"):
        image_signatures.verify(signed, SIGNATURE, ())


@pytest.fixture
def barbican(monkeypatch):
    """Makes a Barbican at an address the key manager; Keystone is at ``/v3`` there."""
    conf = cfg.CONF
    conf.register_opts(key_manager.key_manager_opts, group="key_manager")
    conf.register_opts(utils.credential_opts, group=utils.OPT_GROUP)
    conf.register_opts(barbican_key_manager._barbican_opts, group="barbican")

    def use(url: str) -> None:
        where = {"backend": "barbican", "auth_url": f"{url}/v3"}
        mine = where | {"auth_type": "keystone_token", "token": "t"}
        for name, value in mine.items():
            conf.set_override(name, value, group="key_manager")
        conf.set_override("barbican_endpoint", url, group="barbican")
        conf.set_override("barbican_api_version", "v1", group="barbican")

    yield use
    for name in ("backend", "auth_type", "auth_url", "token"):
        conf.clear_override(name, group="key_manager")
    for name in ("barbican_endpoint", "barbican_api_version"):
        conf.clear_override(name, group="barbican")


#: What Keystone says to who asks for a token.
_TOKEN = liars.said(
    {"token": {"methods": ["token"], "expires_at": "2999-01-01T00:00:00.000000Z"}},
    headers={"X-Subject-Token": "t"},
)


@pytest.mark.parametrize("lie", [*liars.SLOW, *liars.QUICK])
@pytest.mark.parametrize(
    ("name", "honest"), [("vault", {}), ("barbican", {"/v3": _TOKEN}), ("barbican", {})]
)
def test_a_key_manager_that_lies_is_left_in_time(
    name, honest, lie, signed, liar, request, monkeypatch
):
    """Also where what lies is Keystone, and where the library that asks sets no limit."""
    monkeypatch.setattr(answers, "LONGEST", 1.0)
    liar.honest, liar.lie = honest, (liars.SLOW | liars.QUICK)[lie]
    request.getfixturevalue(name)(liar.url)
    known = (image_signatures.NoKeyManager, image_signatures.BadSignature)
    began = time.monotonic()
    with pytest.raises(known[:1] if lie in liars.SLOW else known):
        image_signatures.verify(signed, SIGNATURE, ())
    assert time.monotonic() - began < 15
    assert not any("elsewhere" in call for call in liar.calls), "a redirect was followed"


def test_what_is_no_answer_of_a_key_manager_says_nothing_now(vault, signed, liar):
    empty: list[object] = [{}, None, [], {"data": None}]
    for document in empty:
        liar.lie = liars.said(document)
        vault(liar.url)
        with pytest.raises(image_signatures.NoKeyManager):
            image_signatures.verify(signed, SIGNATURE, ())
