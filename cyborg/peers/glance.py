# SPDX-License-Identifier: Apache-2.0
"""Glance's HTTP API: find the image of a bitstream, and download its data.

Properties of the image say which function a bitstream is and which devices it is for. Glance
filters by these properties.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import requests
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg.common import errors
from cyborg.peers import answers, clients

#: Properties of a bitstream's image: which function it is, and which devices it is for.
FUNCTION_ID = "accel:function_id"
FUNCTION_NAME = "accel:function_name"
VENDOR = "accel:vendor"
BOARD = "accel:board"
REGION_ID = "accel:region_id"
VERSION = "accel:version"

#: The four properties of a signed image. Nova and Cinder use the same.
SIGNATURE = (
    "img_signature",
    "img_signature_certificate_uuid",
    "img_signature_hash_method",
    "img_signature_key_type",
)

_OURS = frozenset({FUNCTION_ID, FUNCTION_NAME, VENDOR, BOARD, REGION_ID, VERSION, *SIGNATURE})
_CHUNK = 1024 * 1024
_TEXTS = ("name", "os_hash_algo", "os_hash_value", "checksum")
_SHAPE = {"id": str, "status": str, "size": (int, None)} | dict.fromkeys(_TEXTS, (str, None))


class NoImage(errors.CyborgError):
    """Glance has no such image, or more than one."""


class Incomplete(errors.CyborgError):
    """The data of an image ended too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as Glance shows it. ``properties`` has only those that Cyborg uses."""

    uuid: str
    name: str | None
    size: int | None
    hash_algo: str | None
    hash_value: str | None
    checksum: str | None
    status: str
    properties: Mapping[str, str]

    @property
    def function_id(self) -> str | None:
        """The id of the function that the bitstream is."""
        return self.properties.get(FUNCTION_ID)

    @property
    def function_name(self) -> str | None:
        """The name of the function that the bitstream is."""
        return self.properties.get(FUNCTION_NAME)

    @property
    def digest(self) -> tuple[str, str] | None:
        """Algorithm and value to verify the data with: MD5 if there is nothing better."""
        if self.hash_algo and self.hash_value:
            return self.hash_algo, self.hash_value
        return ("md5", self.checksum) if self.checksum else None

    @property
    def signature(self) -> Mapping[str, str]:
        """The properties of the signature; empty if the image is not signed."""
        return {key: self.properties[key] for key in SIGNATURE if key in self.properties}

    def facts(self) -> dict[str, Any] | None:
        """The facts that are needed of it until it is written, whatever becomes of it in Glance.

        None if its data cannot be verified.
        """
        if self.digest is None or self.size is None:
            return None
        return {
            "uuid": self.uuid,
            "name": self.name,
            "size": self.size,
            "hash_algo": self.digest[0],
            "hash_value": self.digest[1],
            "function_id": self.function_id,
            "function_name": self.function_name,
            "signature": dict(self.signature),
        }


def find_image(
    conf: cfg.ConfigOpts,
    *,
    uuid: str | None = None,
    name: str | None = None,
    function_id: str | None = None,
    function_name: str | None = None,
) -> Image:
    """The active image with that uuid, name, function id or function name. Give exactly one.

    A uuid finds any image. The others find only an image that is public or belongs to the project
    of Cyborg's own user, because everyone may upload an image that says it is a function. If
    several images have the function id, the newest is taken.

    :raises NoImage: there is none, or several have the name, or it is not active
    :raises keystoneauth1.exceptions.ClientException: Glance or Keystone cannot be reached
    """
    with answers.reading("Glance or Keystone"):
        if uuid is not None:
            return _by_uuid(conf, uuid)
        if function_id is not None:
            return _newest(conf, FUNCTION_ID, function_id)
        if name is not None:
            return _only(conf, "name", name)
        return _only(conf, FUNCTION_NAME, str(function_name))


def download(conf: cfg.ConfigOpts, image_uuid: str) -> Iterator[bytes]:
    """The data of an image, in pieces of 1 MiB.

    :raises NoImage: there is no such image, or it has no data
    :raises Incomplete: the data ends too early
    :raises keystoneauth1.exceptions.ClientException: Glance or Keystone cannot be reached
    """
    headers = {"Accept": "application/octet-stream"}
    try:
        response = _get(conf, f"/images/{_quoted(image_uuid)}/file", stream=True, headers=headers)
    except ka_exc.NotFound as exc:
        raise NoImage(f"Glance has no image {image_uuid}") from exc
    with response:
        if response.status_code == requests.codes.no_content:
            raise NoImage(f"Image {image_uuid} has no data")
        try:
            yield from response.iter_content(_CHUNK)
        except requests.RequestException as exc:
            raise Incomplete(f"Image {image_uuid} did not arrive completely: {exc}") from exc


def _by_uuid(conf: cfg.ConfigOpts, uuid: str) -> Image:
    try:
        image = _image(answers.document(_get(conf, f"/images/{_quoted(uuid)}"), _SHAPE))
    except ka_exc.NotFound as exc:
        raise NoImage(f"Glance has no image {uuid}") from exc
    if image.status != "active":
        raise NoImage(f"Image {uuid} is not active but {image.status}")
    return image


def _newest(conf: cfg.ConfigOpts, key: str, value: str) -> Image:
    found = _search(conf, key, value)
    if not found:
        raise _none(key, value)
    return _image(max(found, key=lambda item: (item["created_at"], item["id"])))


def _only(conf: cfg.ConfigOpts, key: str, value: str) -> Image:
    found = _search(conf, key, value)
    if not found:
        raise _none(key, value)
    if len(found) > 1:
        several = " and ".join(sorted(item["id"] for item in found[:2]))
        raise NoImage(f"Glance has several active images with {key} {value!r}, such as {several}")
    return _image(found[0])


def _none(key: str, value: str) -> NoImage:
    return NoImage(
        f"Glance has no active image with {key} {value!r} that is public or Cyborg's own"
    )


def _search(conf: cfg.ConfigOpts, key: str, value: str) -> list[dict[str, Any]]:
    """The two newest public images and the two newest of our own project, each image once."""
    own = clients.proxy(conf, "glance").get_project_id()
    # Glance reads a name that begins with "in:" as a list of names.
    wanted = f'in:"{value}"' if key == "name" and value.startswith("in:") else value
    found: dict[str, dict[str, Any]] = {}
    for place in ({"visibility": "public"}, {"owner": own} if own else {}):
        if place:
            query = {key: wanted, "status": "active", "sort": "created_at:desc", "limit": "2"}
            try:
                answer = _get(conf, "/images", params=query | place)
            except ka_exc.BadRequest as exc:
                # Trying again would not help.
                raise NoImage(f"Glance cannot look for {key} {value!r}: {exc}") from exc
            listed = answers.document(answer, {"images": [_SHAPE | {"created_at": str}]})["images"]
            found |= {item["id"]: item for item in listed}
    return list(found.values())


def _image(item: Mapping[str, Any]) -> Image:
    return Image(
        uuid=item["id"],
        name=item.get("name"),
        size=item.get("size"),
        hash_algo=item.get("os_hash_algo"),
        hash_value=item.get("os_hash_value"),
        checksum=item.get("checksum"),
        status=item["status"],
        properties={key: item[key] for key in sorted(_OURS) if isinstance(item.get(key), str)},
    )


def _get(conf: cfg.ConfigOpts, path: str, **arguments: Any) -> requests.Response:
    proxy = clients.proxy(conf, "glance")
    retries = conf.glance.num_retries
    # Some catalogs name the endpoint with the version, others without it.
    endpoint = proxy.get_endpoint() or ""
    base = "" if endpoint.rstrip("/").endswith("/v2") else "/v2"
    answer: requests.Response = proxy.get(
        base + path,
        raise_exc=True,
        connect_retries=retries,
        status_code_retries=retries,
        **arguments,
    )
    return answer


def _quoted(uuid: str) -> str:
    return urllib.parse.quote(uuid, safe="")
