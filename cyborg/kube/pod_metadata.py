# SPDX-License-Identifier: Apache-2.0
"""The files that tell a pod of its devices (KEP-5304), and the CDI files that mount them.

There is a file for each request of a claim, below the driver's folder. All of them are written when
the claim is prepared, and removed when it is unprepared; nothing else is kept.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from cyborg.common import errors, files
from cyborg.kube.cluster import node_name

#: Newest first: a pod takes the first that it knows.
_VERSIONS = ("v1beta1", "v1alpha1")
_GROUP = "metadata.resource.k8s.io"
_INSIDE = "/var/run/kubernetes.io/dra-device-attributes"
_TEMPLATES, _CLAIMS = "resourceclaimtemplates", "resourceclaims"
#: The name that the claim has in the pod, where Kubernetes made it of a template.
_POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_UID = re.compile(r"[0-9a-f-]{36}", re.ASCII)
_CDI_VERSION = "0.3.0"

_Row = Mapping[str, Any]


class NoMetadata(errors.CyborgError):
    """The files of a claim cannot be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A device of a request, perhaps of ``request/subrequest``, with its attributes."""

    request: str
    device: str
    attributes: Mapping[str, Any]


class PodMetadata:
    """The files of this node; none without ``[kube] cdi_dir``."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        kube = conf.kube
        self._driver, self._pool = kube.driver_name, node_name(conf)
        self._folder = pathlib.Path(kube.plugins_dir, self._driver, "metadata")
        self._cdi = pathlib.Path(kube.cdi_dir) if kube.cdi_dir else None

    @property
    def is_written(self) -> bool:
        """True if pods are told of their devices at all."""
        return self._cdi is not None

    def write(self, claim: _Row, told: Sequence[Told]) -> dict[str, str]:
        """Write the files of a claim; the CDI device that mounts each, by the name of its request.

        :raises NoMetadata: they are not written
        """
        if self._cdi is None:
            return {}
        meta = claim["metadata"]
        uid, pod_claim = meta["uid"], (meta.get("annotations") or {}).get(_POD_CLAIM)
        requests = dict.fromkeys(each.request.partition("/")[0] for each in told)
        _check_names(uid, *requests, pod_claim or meta["name"])
        where = f"{_TEMPLATES}/{pod_claim}" if pod_claim else f"{_CLAIMS}/{meta['name']}"
        devices = []
        try:
            for request in requests:
                path = self._folder / uid / f"{request}.json"
                _write(path, self._stream(claim, request, pod_claim, told))
                inside = f"{_INSIDE}/{where}/{request}/{self._driver}-metadata.json"
                mount = {"hostPath": str(path), "containerPath": inside, "options": ["ro", "bind"]}
                edits = {"containerEdits": {"mounts": [mount]}}
                devices.append({"name": _device(uid, request), **edits})
            kind = f"{self._driver}/metadata"
            spec = {"cdiVersion": _CDI_VERSION, "kind": kind, "devices": devices}
            _write(self._file(self._cdi, uid), json.dumps(spec))
        except OSError as exc:
            raise NoMetadata(f"[kube] cdi_dir or plugins_dir cannot be written: {exc}") from exc
        return {request: f"{kind}={_device(uid, request)}" for request in requests}

    def remove(self, uid: str) -> None:
        """Remove the files of a claim, if there are any.

        :raises NoMetadata: they are not removed
        """
        if self._cdi is None or not _UID.fullmatch(uid):
            return
        try:
            self._file(self._cdi, uid).unlink(missing_ok=True)
            shutil.rmtree(self._folder / uid, ignore_errors=True)
        except OSError as exc:
            raise NoMetadata(f"[kube] cdi_dir cannot be written: {exc}") from exc

    def _file(self, folder: pathlib.Path, uid: str) -> pathlib.Path:
        return folder / f"{self._driver}-metadata-{uid}.json"

    def _stream(
        self, claim: _Row, request: str, pod_claim: str | None, told: Sequence[Told]
    ) -> str:
        """The same in each version of it."""
        meta = claim["metadata"]
        whole: dict[str, list[_Row]] = {}
        for each in told:
            if each.request.partition("/")[0] == request:
                device = {"driver": self._driver, "pool": self._pool, "name": each.device}
                attributes = {"attributes": dict(each.attributes)}
                whole.setdefault(each.request, []).append(device | attributes)
        content = {
            "kind": "DeviceMetadata",
            "metadata": {
                **{key: meta[key] for key in ("name", "namespace", "uid")},
                "generation": 1,
            },
            **({"podClaimName": pod_claim} if pod_claim else {}),
            "requests": [{"name": name, "devices": each} for name, each in whole.items()],
        }
        versions = ({"apiVersion": f"{_GROUP}/{each}", **content} for each in _VERSIONS)
        return "".join(f"{json.dumps(each)}\n" for each in versions)


def _check_names(uid: str, *names: str) -> None:
    """Raise NoMetadata if a name is none of Kubernetes': it would become part of a path."""
    for name in names:
        if not _NAME.fullmatch(name) or not _UID.fullmatch(uid):
            raise NoMetadata(f"{name!r} is not a name that Kubernetes gives.")


def _device(uid: str, request: str) -> str:
    # Older runtimes want a letter at the beginning.
    return f"claim-{uid}_{request}"


def _write(path: pathlib.Path, text: str) -> None:
    """Write a file, unless it says the same already: a container may have it mounted."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        files.replace(path, text, mode=0o644)
