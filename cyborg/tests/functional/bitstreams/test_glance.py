# SPDX-License-Identifier: Apache-2.0
"""Images of bitstreams are found in the real Glance, and their data is fetched from it."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from keystoneauth1 import exceptions as ka_exc
from keystoneauth1 import loading as ka_loading
from oslo_config import cfg

from cyborg.peers import glance
from cyborg.tests.keystone_server import Keystone


def data_of(conf: cfg.ConfigOpts, image_uuid: str) -> bytes:
    return b"".join(glance.download(conf, image_uuid))


def test_an_image_is_found_by_its_uuid_with_what_is_written_on_it(conf, images):
    signed = {key: f"value of {key}" for key in glance.SIGNATURE}
    found = images.upload(
        "aes", b"abc", accel_function_id="f-1", accel_function_name="AES", other="x"
    )
    images.describe(found, **signed)

    image = glance.find_image(conf, uuid=found)

    digest = hashlib.sha512(b"abc").hexdigest()
    assert (image.uuid, image.name, image.size, image.status) == (found, "aes", 3, "active")
    assert image.digest == ("sha512", digest)
    assert image.properties == signed | {"accel:function_id": "f-1", "accel:function_name": "AES"}
    assert (image.function_id, image.function_name) == ("f-1", "AES")
    assert image.signature == signed


def test_an_image_is_found_by_its_name(conf, images):
    names = ("aes", "with blank & more?", "in:a,b", "a,b", 'a "quoted" one', "a")
    wanted = {name: images.upload(name) for name in names}

    assert {name: glance.find_image(conf, name=name).uuid for name in names} == wanted


def test_a_name_that_glance_cannot_look_for_means_none(conf, images):
    images.upload('in:a"b')

    with pytest.raises(glance.NoImage, match="Glance cannot look for name"):
        glance.find_image(conf, name='in:a"b')


def test_of_one_function_the_newest_active_image_counts(conf, images):
    newest = images.upload("new", accel_function_id="f-1")
    images.antedate(images.upload("old", accel_function_id="f-1"))
    images.antedate(newest, days=1)
    images.upload("not yet", None, accel_function_id="f-1")
    images.upload("another", accel_function_id="f-2")

    assert glance.find_image(conf, function_id="f-1").uuid == newest


@pytest.mark.parametrize(
    ("key", "shown", "described"),
    [
        ("name", "name", {}),
        ("function_name", "accel:function_name", {"accel_function_name": "AES"}),
    ],
)
def test_a_name_of_several_images_means_none_of_them(conf, images, key, shown, described):
    only = images.upload("AES", **described)
    assert glance.find_image(conf, **{key: "AES"}).uuid == only

    images.upload("AES", **described)
    with pytest.raises(glance.NoImage, match=f"^Glance has several active images with {shown}"):
        glance.find_image(conf, **{key: "AES"})


def test_what_nobody_has_is_no_image(conf, images):
    images.upload("aes", accel_function_id="f-1", accel_function_name="AES")

    for key in ("name", "function_id", "function_name"):
        with pytest.raises(glance.NoImage, match=r"no active image with .*'nobody' that is public"):
            glance.find_image(conf, **{key: "nobody"})


def test_an_image_of_anybody_is_no_function_of_the_cloud(conf, images):
    own = {"accel_function_id": "f-1", "accel_function_name": "AES", "visibility": "private"}
    private = images.upload("aes", owner="mallory", **own)

    for wanted in ({"name": "aes"}, {"function_id": "f-1"}, {"function_name": "AES"}):
        with pytest.raises(glance.NoImage):
            glance.find_image(conf, **wanted)
    # Whoever names its uuid has looked at it.
    assert glance.find_image(conf, uuid=private).uuid == private


def test_an_image_of_cyborgs_own_project_need_not_be_public(
    conf, images, keystone: Keystone
):
    conf.register_opts(ka_loading.get_auth_plugin_conf_options("password"), group="glance")
    for name, value in {
        "auth_type": "password",
        "auth_url": keystone.url,
        "username": keystone.admin_user,
        "password": keystone.password,
        "user_domain_id": "default",
        "project_name": keystone.admin_project,
        "project_domain_id": "default",
    }.items():
        conf.set_override(name, value, group="glance")
    project = keystone.api().get_project_id()
    mine = images.upload(
        "aes", owner=project, visibility="private", accel_function_id="f-1"
    )

    assert glance.find_image(conf, function_id="f-1").uuid == mine
    assert glance.find_image(conf, name="aes").uuid == mine


@pytest.mark.parametrize("image_uuid", [str(uuid.UUID(int=7)), "no uuid", "../v2/images", ""])
def test_a_uuid_that_nobody_has_is_no_image(conf, images, image_uuid):
    with pytest.raises(glance.NoImage):
        glance.find_image(conf, uuid=image_uuid)
    with pytest.raises(glance.NoImage):
        data_of(conf, image_uuid)


def test_an_image_without_data_is_not_active(conf, images):
    queued = images.upload("aes", None)

    with pytest.raises(glance.NoImage, match=r"is not active but queued$"):
        glance.find_image(conf, uuid=queued)
    with pytest.raises(glance.NoImage, match="has no data"):
        data_of(conf, queued)


@pytest.mark.parametrize("tail", ["", "/", "/v2", "/v2/"])
def test_an_endpoint_may_name_its_version(conf, images, tail):
    conf.set_override("endpoint_override", images.url + tail, group="glance")
    image = images.upload("aes")

    assert glance.find_image(conf, uuid=image).uuid == image


def test_a_glance_that_is_not_there_is_told_from_an_image_that_is_not(conf, images):
    conf.set_override("endpoint_override", "http://127.0.0.1:1", group="glance")

    with pytest.raises(ka_exc.ConnectFailure):
        glance.find_image(conf, uuid=str(uuid.uuid4()))
    with pytest.raises(ka_exc.ConnectFailure):
        data_of(conf, str(uuid.uuid4()))
