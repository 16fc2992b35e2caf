# SPDX-License-Identifier: Apache-2.0
"""Bitstreams come from the real Glance to the host whole and verified, and within bounds."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import threading
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from cyborg import rpc
from cyborg.agent import bitstream_cache
from cyborg.tests import full_payloads
from cyborg.tests.signers import Signer

MIB = 1024 * 1024


@pytest.fixture
def folder(conf, tmp_path):
    path = tmp_path / "state" / "bitstreams"
    conf.set_override("cache_path", str(path), group="programming")
    return path


@pytest.fixture
def cache(conf, folder):
    return bitstream_cache.Cache(conf)


def step_for(image: str, data: bytes, **changes: Any) -> rpc.ProgramStep:
    """The order to load an image of which Glance tells the truth."""
    step = dataclasses.replace(
        full_payloads.program_step(),
        image_uuid=image,
        size=len(data),
        hash_algo="sha512",
        hash_value=hashlib.sha512(data).hexdigest(),
        signature={},
    )
    return dataclasses.replace(step, **changes)


def read(cache: bitstream_cache.Cache, step: rpc.ProgramStep) -> bytes:
    with cache.fetched(step) as path:
        return path.read_bytes()


def kept(folder: pathlib.Path) -> set[str]:
    """The images of which something is on disk, and what else there is."""
    return {path.name.partition(".")[0] for path in folder.iterdir()}


def test_an_image_is_fetched_once_and_kept(conf, cache, images, folder):
    data = bytes(range(256)) * 20_000
    image = images.upload("aes", data)
    step = step_for(image, data)

    assert read(cache, step) == data
    images.clear()

    assert read(cache, step) == data
    # It serves the next agent too.
    assert read(bitstream_cache.Cache(conf), step) == data
    assert kept(folder) == {image}
    assert not cache._fetching
    assert not cache._in_use


def test_what_an_agent_left_half_written_is_removed(cache, images, folder):
    folder.mkdir(parents=True)
    (folder / "half.part").write_bytes(b"ab")
    os.utime(folder / "half.part", (0, 0))
    step = step_for(images.upload("aes", b"abc"), b"abc")

    read(cache, step)

    assert kept(folder) == {step.image_uuid}


@pytest.mark.parametrize("changed", [b"abd", b"", b"abcd"])
def test_what_has_changed_on_disk_is_fetched_again(cache, images, folder, changed):
    step = step_for(images.upload("aes", b"abc"), b"abc")
    read(cache, step)
    (path,) = folder.iterdir()
    path.write_bytes(changed)

    assert read(cache, step) == b"abc"


@pytest.mark.parametrize("spoilt", [b"abd", b"ab", b"abcd", b"abc" * MIB])
def test_data_that_is_not_what_glance_shows_is_refused_and_not_kept(cache, images, folder, spoilt):
    image = images.upload("aes", b"abc")
    images.spoil(image, spoilt)

    with pytest.raises(bitstream_cache.NoBitstream):
        read(cache, step_for(image, b"abc"))

    assert kept(folder) == set()
    assert not cache._fetching


def test_an_image_that_is_gone_is_refused(cache, images):
    step = step_for(images.upload("aes", b"abc"), b"abc")
    images.clear()

    with pytest.raises(bitstream_cache.NoBitstream, match="Glance has no image"):
        read(cache, step)


def test_without_glance_nothing_is_fetched(conf, cache):
    step = step_for("2a4a1a0c-8f5a-4c70-9b64-5fb5d3f1f3a2", b"abc")
    with pytest.raises(bitstream_cache.NoBitstream, match="There is no Glance"):
        read(cache, step)


def test_a_glance_that_is_down_may_be_asked_later(conf, cache, images, folder):
    step = step_for(images.upload("aes", b"abc"), b"abc")
    conf.set_override("endpoint_override", "http://127.0.0.1:1", group="glance")

    with pytest.raises(bitstream_cache.NotNow, match="cannot be fetched now"):
        read(cache, step)

    assert kept(folder) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"image_uuid": "../../etc/passwd"},
        {"hash_algo": "sha512/.."},
        {"hash_algo": "shake_128"},
        {"hash_value": "../x"},
        {"size": 512 * MIB + 1},
    ],
)
@pytest.mark.usefixtures("images")
def test_what_can_be_no_bitstream_is_refused_before_it_is_asked_for(cache, folder, changes):
    with pytest.raises(bitstream_cache.NoBitstream):
        read(cache, step_for("2a4a1a0c-8f5a-4c70-9b64-5fb5d3f1f3a2", b"abc", **changes))

    assert not folder.exists() or kept(folder) == set()


def test_a_folder_that_cannot_be_written_is_a_sentence(conf, cache, images, tmp_path):
    (tmp_path / "file").touch()
    conf.set_override("cache_path", str(tmp_path / "file"), group="programming")

    with pytest.raises(bitstream_cache.NoBitstream, match="cannot be kept"):
        read(cache, step_for(images.upload("aes", b"abc"), b"abc"))


@pytest.mark.parametrize("secure", [True, False])
def test_an_md5_checksum_counts_only_where_the_operator_says_so(conf, cache, images, secure):
    conf.set_override("require_secure_hash", secure, group="programming")
    md5 = hashlib.md5(b"abc", usedforsecurity=False).hexdigest()
    step = step_for(images.upload("aes", b"abc"), b"abc", hash_algo="md5", hash_value=md5)

    if secure:
        with pytest.raises(bitstream_cache.NoBitstream, match="require_secure_hash"):
            read(cache, step)
    else:
        assert read(cache, step) == b"abc"


def large(images, name: bytes) -> rpc.ProgramStep:
    data = name * MIB
    return step_for(images.upload(name.decode(), data), data)


def test_what_was_used_longest_ago_makes_room(conf, cache, images, folder):
    conf.set_override("cache_size_mib", 2, group="programming")
    first, second, third = (large(images, name) for name in (b"a", b"b", b"c"))
    read(cache, first)
    read(cache, second)
    read(cache, first)

    read(cache, third)

    assert kept(folder) == {first.image_uuid, third.image_uuid}


def test_what_is_in_use_stays_whatever_it_takes(conf, cache, images, folder):
    conf.set_override("cache_size_mib", 1, group="programming")
    first, second = (large(images, name) for name in (b"a", b"b"))

    with cache.fetched(first) as path, cache.fetched(second):
        assert kept(folder) == {first.image_uuid, second.image_uuid}
        assert path.read_bytes() == b"a" * MIB

    assert len(kept(folder)) == 1


def test_nothing_is_kept_where_nothing_may_be(conf, cache, images, folder):
    conf.set_override("cache_size_mib", 0, group="programming")

    assert read(cache, large(images, b"a")) == b"a" * MIB
    assert kept(folder) == set()


def test_two_that_need_one_image_share_it(cache, images, folder):
    step, done = large(images, b"a"), []
    threads = [
        threading.Thread(target=lambda: done.append(read(cache, step)), daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))

    assert done == [b"a" * MIB] * 4
    assert kept(folder) == {step.image_uuid}


def test_what_was_signed_passes_each_time_and_nothing_else(conf, cache, images, keys):
    conf.set_override("require_signature", True, group="programming")
    image, signer = images.upload("aes", b"abc"), Signer(keys)
    step = step_for(image, b"abc", signature=signer.sign(b"abc"))
    otherwise = step_for(image, b"abc", signature=signer.sign(b"abd"))

    for _ in range(2):
        assert read(cache, step) == b"abc"
        with pytest.raises(bitstream_cache.NoBitstream, match="differs from the signed"):
            read(cache, otherwise)
    with pytest.raises(bitstream_cache.NoBitstream, match="is not signed"):
        read(cache, step_for(image, b"abc"))


def test_a_signature_that_says_nothing_is_refused(cache, images, keys):
    image, signature = images.upload("aes", b"abc"), Signer(keys).sign(b"abc")
    for change in (
        {"img_signature_certificate_uuid": "2a4a1a0c-8f5a-4c70-9b64-5fb5d3f1f3a2"},
        {"img_signature_hash_method": "ROT-13"},
        {"img_signature_key_type": "none"},
        {"img_signature": "%%%"},
        {"img_signature": ""},
    ):
        with pytest.raises(bitstream_cache.NoBitstream, match="signature of image"):
            read(cache, step_for(image, b"abc", signature=signature | change))


def test_a_key_that_is_too_small_for_its_hash_is_no_good(cache, images, keys):
    small = rsa.RSAPublicNumbers(65537, 2**511 + 1).public_key()
    signature = Signer(keys, public=small).sign(b"abc") | {"img_signature_hash_method": "SHA-512"}

    with pytest.raises(bitstream_cache.NoBitstream, match="Digest too large"):
        read(cache, step_for(images.upload("aes", b"abc"), b"abc", signature=signature))


def test_a_key_manager_that_is_away_says_nothing_of_a_signature(cache, images, keys, silent_vault):
    step = step_for(images.upload("aes", b"abc"), b"abc", signature=Signer(keys).sign(b"abc"))

    with silent_vault, pytest.raises(bitstream_cache.NotNow, match="cannot be verified now"):
        read(cache, step)

    assert read(cache, step) == b"abc"


def test_only_those_whom_the_operator_trusts_may_sign_while_their_certificates_are_valid(
    conf, cache, images, keys
):
    authority, image = Signer(keys), images.upload("aes", b"abc")

    def step_of(signer: Signer) -> rpc.ProgramStep:
        return step_for(image, b"abc", signature=signer.sign(b"abc"))

    invalid = [step_of(Signer(keys, by=authority, days=days)) for days in ((-3, -1), (1, 3))]
    for trusted, refused in (([], invalid), ([authority.uuid], [*invalid, step_of(Signer(keys))])):
        conf.set_override("trusted_certificate_ids", trusted, group="programming")
        for step in refused:
            with pytest.raises(bitstream_cache.NoBitstream, match="signature of image"):
                read(cache, step)
    assert read(cache, step_of(Signer(keys, by=authority))) == b"abc"
