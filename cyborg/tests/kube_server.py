# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Kubernetes' API server: nodes, ResourceClaims, and ResourceSlices.

It also allocates, as the scheduler would, from slices of the newest generation.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import http.server
import itertools
import json
import pathlib
import re
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from typing import Any

import yaml
from kubernetes import client

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_GROUP = "/apis/resource.k8s.io/v1"

_Document = dict[str, Any]


class _Refusal(Exception):
    def __init__(self, code: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


class KubeServer:
    """The server, and what it has."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.slices: dict[str, _Document] = {}
        self.claims: dict[tuple[str, str], _Document] = {}
        #: Fields of devices and slices that it does not know.
        self.drops: set[str] = set()
        #: A name of slices that it refuses.
        self.refused: str | None = None
        #: A text that it permits in no attribute.
        self.forbidden: str | None = None
        #: Whether it answers everything with an error.
        self.is_broken = False
        #: How often slices were written.
        self.writes = 0
        self._versions = itertools.count(1)
        self._lock = threading.Lock()
        #: The claims by uid, as the last list of them showed them, by its version.
        self._listed: dict[str, dict[str, _Document]] = {}
        self.is_stopped = False
        server = self

        class Handler(_Handler):
            owner = server

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Serve no further request."""
        self.is_stopped = True
        self._server.shutdown()
        self._server.server_close()

    def write_kubeconfig(self, path: pathlib.Path) -> None:
        """Write the file by which clients find it."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {"token": "secret"}}],
        }
        path.write_text(yaml.safe_dump(document))

    def devices(self) -> dict[str, _Document]:
        """The devices of the whole pool, by their names; nothing while it is not whole."""
        specs = [each["spec"] for each in self.slices.values()]
        newest = max((spec["pool"]["generation"] for spec in specs), default=0)
        whole = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if any(spec["pool"]["resourceSliceCount"] != len(whole) for spec in whole):
            return {}
        return {each["name"]: each for spec in whole for each in spec.get("devices", ())}

    def counters(self) -> dict[str, int]:
        """How many accelerators each set of counters has."""
        return {
            each["name"]: int(each["counters"]["accelerators"]["value"])
            for found in self.slices.values()
            for each in found["spec"].get("sharedCounters", ())
        }

    def claim(
        self,
        *devices: str,
        uid: str | None = None,
        config: list[_Document] | None = None,
        **more: object,
    ) -> tuple[str, str, str]:
        """A claim to which these devices are allocated: its namespace, name and uid."""
        own = uid or str(uuid.uuid4())
        known = self.devices()
        results = [
            {
                "request": f"request-{number}",
                "driver": "cyborg.openstack.org",
                "pool": self.node,
                "device": device,
                **{
                    key: value
                    for key, value in known.get(device, {}).items()
                    if key in {"bindingConditions", "bindingFailureConditions"}
                },
                **more,
            }
            for number, device in enumerate(devices)
        ]
        other = {"request": "nic", "driver": "nic.example.org", "pool": self.node, "device": "a"}
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": f"claim-{own}", "uid": own},
            "spec": {"devices": {"requests": []}},
            "status": {
                "allocation": {"devices": {"results": [other, *results], "config": config or []}}
            },
        }
        self.claims["default", f"claim-{own}"] = document
        return "default", f"claim-{own}", own

    def condition(self, claim: tuple[str, str, str]) -> tuple[str, str] | None:
        """The condition that the driver has set on all its devices of a claim, and its message."""
        status = self.claims[claim[:2]]["status"]
        results = status["allocation"]["devices"]["results"]
        told = {
            _key(each): (condition["type"], condition["message"])
            for each in status.get("devices", ())
            for condition in each["conditions"]
            if condition["status"] == "True"
        }
        found = {told.get(_key(each)) for each in results if each["driver"] != "nic.example.org"}
        assert len(found) == 1, found
        return found.pop()

    def answer(self, method: str, url: str, body: Any) -> Any:
        """What the server answers."""
        parts = urllib.parse.urlsplit(url)
        query = dict(urllib.parse.parse_qsl(parts.query))
        with self._lock:
            if self.is_broken:
                raise _Refusal(503, "etcd is away")
            if method == "PATCH":
                return self._apply(parts.path, query, body)
            if parts.path.startswith(f"{_GROUP}/resourceslices"):
                name = parts.path.removeprefix(f"{_GROUP}/resourceslices").strip("/")
                return self._slice(method, name, query, body)
            return self._other(parts.path)

    def _other(self, path: str) -> Any:
        if path == f"/api/v1/nodes/{self.node}":
            return {"kind": "Node", "metadata": {"name": self.node, "uid": "node-uid"}}
        if path == f"{_GROUP}/resourceclaims":
            version = str(next(self._versions))
            items = copy.deepcopy(list(self.claims.values()))
            self._listed = {version: {each["metadata"]["uid"]: each for each in items}}
            return {"metadata": {"resourceVersion": version}, "items": items}
        match = re.fullmatch(f"{_GROUP}/namespaces/([^/]+)/resourceclaims/([^/]+)", path)
        if match and (match[1], match[2]) in self.claims:
            return self.claims[match[1], match[2]]
        raise _Refusal(404, f"{path} not found")

    def _apply(self, path: str, query: dict[str, str], body: _Document) -> Any:
        """Apply what the driver says of its devices in a claim's status."""
        match = re.fullmatch(f"{_GROUP}/namespaces/([^/]+)/resourceclaims/([^/]+)/status", path)
        claim = self.claims.get((match[1], match[2])) if match else None
        if claim is None:
            raise _Refusal(404, f"{path} not found")
        assert query["fieldManager"] == f"cyborg.openstack.org/{self.node}"
        assert body.keys() == {"apiVersion", "kind", "metadata", "status"}
        if body["metadata"]["uid"] != claim["metadata"]["uid"]:
            raise _Refusal(409, "it is another one")
        read = client.ResourceV1ResourceClaim.from_dict({**body, "spec": {}})
        devices = body["status"]["devices"]
        assert len(read.status.devices) == len(devices)
        results = claim["status"]["allocation"]["devices"]["results"]
        for each in devices:
            assert _key(each) in map(_key, results), "only what is allocated has a status"
            assert len(each.get("conditions", [])) <= 8
            assert len(json.dumps(each.get("data", {}))) <= 10240
        others = [
            each
            for each in claim["status"].get("devices", ())
            if each["driver"] != "cyborg.openstack.org"
        ]
        claim["status"]["devices"] = others + copy.deepcopy(devices)
        return claim

    def changes(self, version: str, seconds: float) -> Iterator[_Document]:
        """What becomes of the claims as they were listed, for so long."""
        before = self._listed.get(version, {})
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.is_stopped:
            with self._lock:
                now = {each["metadata"]["uid"]: each for each in self.claims.values()}
                now = copy.deepcopy(now)
            for uid in before.keys() - now.keys():
                yield {"type": "DELETED", "object": before[uid]}
            for uid, claim in now.items():
                if before.get(uid) != claim:
                    yield {"type": "MODIFIED" if uid in before else "ADDED", "object": claim}
            before = now
            time.sleep(0.05)

    def _slice(self, method: str, name: str, query: dict[str, str], body: Any) -> Any:
        if method == "GET":
            wanted = dict(each.split("=") for each in query["fieldSelector"].split(","))
            keys = {key.removeprefix("spec."): value for key, value in wanted.items()}
            found = [
                each
                for each in self.slices.values()
                if all(each["spec"][key] == value for key, value in keys.items())
            ]
            return {"metadata": {}, "items": found}
        if method != "POST" and name not in self.slices:
            raise _Refusal(404, f"{name} not found")
        if method == "DELETE":
            return self.slices.pop(name)
        return self._write(method, body, is_dry=query.get("dryRun") == "All")

    def _write(self, method: str, body: _Document, *, is_dry: bool) -> _Document:
        read = client.V1ResourceSlice.from_dict(body)
        assert client.ApiClient().sanitize_for_serialization(read) == body
        check(body["spec"])
        for number, device in enumerate(body["spec"].get("devices", [])):
            if {"string": self.forbidden} in device["attributes"].values():
                field = f"spec.devices[{number}].attributes[model].string"
                raise _Refusal(422, f"{field}: Invalid value", field)
        metadata = body["metadata"]
        if metadata["name"] == self.refused:
            raise _Refusal(422, "it is invalid")
        before = self.slices.get(metadata["name"])
        if method == "POST" and before is not None:
            raise _Refusal(409, "it exists")
        if before is not None:
            if before["metadata"]["resourceVersion"] != metadata.get("resourceVersion"):
                raise _Refusal(409, "it has changed")
            for key in ("driver", "nodeName"):
                assert before["spec"][key] == body["spec"][key], f"{key} cannot change"
        stored = copy.deepcopy(body)
        stored["metadata"]["resourceVersion"] = str(next(self._versions))
        self._complete(stored["spec"])
        if not is_dry:
            self.slices[metadata["name"]] = stored
            self.writes += 1
        return stored

    def _complete(self, spec: _Document) -> None:
        for each in (spec, *spec.get("devices", ())):
            for name in self.drops & each.keys():
                del each[name]
        now = datetime.datetime.now(datetime.UTC).isoformat()
        for device in spec.get("devices", ()):
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", now)


def _key(device: _Document) -> tuple[str, ...]:
    return device["driver"], device["pool"], device["device"]


def check(spec: _Document) -> None:
    """Refuse what the descriptions of the types forbid."""
    devices, sets = spec.get("devices", []), spec.get("sharedCounters", [])
    assert not (devices and sets)
    limited = any("taints" in each or "consumesCounters" in each for each in devices)
    assert len(devices) <= (64 if limited else 128)
    assert len(sets) <= 8
    assert all(0 < len(each["counters"]) <= 32 for each in sets)
    for each in [*devices, *sets]:
        assert _LABEL.fullmatch(each["name"]), each["name"]
    for each in devices:
        assert len(each["attributes"]) + len(each.get("capacity", {})) <= 32
        for key, value in each["attributes"].items():
            assert re.fullmatch(r"(resource\.kubernetes\.io/)?[A-Za-z_]\w{0,31}", key), key
            assert len(value) == 1, value
            assert len(str(next(iter(value.values()))).encode()) <= 64
        # Releases before 1.35 take no more, and it is the same for all of them.
        assert len(each.get("taints", [])) <= 4
        assert len(each.get("consumesCounters", [])) <= 2
        for field in ("bindingConditions", "bindingFailureConditions"):
            assert len(each.get(field, [])) <= 4
            for condition in each.get(field, []):
                assert re.fullmatch(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9][\w.-]{0,62}", condition)


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: KubeServer
    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        if "watch=" in self.path.lower():
            self._watch()
            return
        code, answer = 200, None
        try:
            assert self.headers["Authorization"] == "Bearer secret"
            answer = self.owner.answer(self.command, self.path, body)
        except _Refusal as exc:
            code, answer = exc.code, {"kind": "Status", "code": exc.code, "message": str(exc)}
            if exc.field is not None:
                cause = {"reason": "FieldValueInvalid", "message": str(exc), "field": exc.field}
                answer["details"] = {"causes": [cause]}
        except AssertionError as exc:
            code, answer = 422, {"kind": "Status", "code": 422, "message": f"Invalid: {exc}"}
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        seconds = float(query["timeoutSeconds"])
        with contextlib.suppress(OSError):
            for event in self.owner.changes(query["resourceVersion"], seconds):
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _do  # noqa: N815 - its names

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""
