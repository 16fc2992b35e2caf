# SPDX-License-Identifier: Apache-2.0
"""The example for Envoy: its configuration, and the script with a stand-in for podman."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
import yaml
from google.protobuf import duration_pb2

from cyborg.tests.standalone_site import TIMEOUT, wait_for

pytestmark = pytest.mark.slow

EXAMPLES = pathlib.Path(__file__).parents[4] / "examples"
CONSUMER = "5c1b2b9c-6a1e-4d6e-9a55-6a4d2f0e8a11"
HEADERS = {"OpenStack-API-Version": "accelerator 2.4"}
PODMAN = """#!/bin/sh
echo "$@" >>"$PODMAN_LOG"
"""


def configuration() -> tuple[Any, Any]:
    """The configuration without that of the extension, and that of the extension."""
    whole = yaml.safe_load((EXAMPLES / "envoy.yaml").read_text())
    (chain,) = whole["static_resources"]["listeners"][0]["filter_chains"]
    context = chain["transport_socket"]["typed_config"]["common_tls_context"]
    (certificate,) = context["tls_certificates"]
    return whole, certificate["private_key_provider"].pop("typed_config")


def test_the_configuration_is_made_of_envoys_messages() -> None:
    # All of Envoy's messages: too much for each worker that collects tests.
    from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap  # noqa: PLC0415
    from envoy_data_plane.envoy.config.core.v3 import DataSource  # noqa: PLC0415
    from envoy_data_plane.envoy.extensions.filters.network.tcp_proxy.v3 import TcpProxy  # noqa: PLC0415
    from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import DownstreamTlsContext  # noqa: PLC0415

    whole, extension = configuration()
    read = Bootstrap.from_dict(whole)
    assert read.static_resources is not None
    (listener,) = read.static_resources.listeners
    (chain,) = listener.filter_chains
    assert chain.transport_socket is not None
    assert chain.transport_socket.typed_config is not None
    context = chain.transport_socket.typed_config.unpack()
    assert isinstance(context, DownstreamTlsContext)
    assert context.common_tls_context is not None
    (certificate,) = context.common_tls_context.tls_certificates
    assert certificate.private_key_provider is not None
    assert certificate.private_key_provider.provider_name == "qat"
    assert certificate.private_key_provider.fallback
    assert chain.filters[0].typed_config is not None
    proxy = chain.filters[0].typed_config.unpack()
    assert isinstance(proxy, TcpProxy)
    assert proxy.cluster == read.static_resources.clusters[0].name
    # The package has no contrib extensions: this message has two fields.
    kind = "envoy.extensions.private_key_providers.qat.v3alpha.QatPrivateKeyMethodConfig"
    assert extension.pop("@type") == f"type.googleapis.com/{kind}"
    assert DataSource.from_dict(extension.pop("private_key")).filename == "/etc/envoy/tls.key"
    delay = duration_pb2.Duration()
    delay.FromJsonString(extension.pop("poll_delay"))
    assert delay.ToMicroseconds() > 1
    assert extension == {}


def test_envoy_has_what_is_allocated_and_nothing_else(serving, start, tmp_path) -> None:
    log, podman = tmp_path / "podman.log", tmp_path / "podman"
    podman.write_text(PODMAN)
    podman.chmod(0o755)

    def names() -> list[str]:
        found = serving.ask("GET", "/v2/allocations", **HEADERS)["allocations"]
        own = [each for one in found for each in one["accelerators"]]
        return [each["attach_handle_info"].get("cdi_device", "") for each in own]

    def runs() -> list[list[str]]:
        lines = log.read_text().splitlines() if log.exists() else []
        assert [line.split()[0] for line in lines[:2]] in ([], ["rm"], ["rm", "run"])
        return [
            [word for word in line.split() if word.startswith("--device")]
            for line in lines
            if line.startswith("run")
        ]

    own = {"LEASE": "3", "PODMAN_LOG": str(log), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = start("envoy.sh", CONSUMER, "/srv/envoy", "many", "dp", **own)
    try:
        wait_for("Envoy", runs)
        assert runs() == [[f"--device={name}" for name in names()]]
        assert len(names()) == 2
        serving.ask("DELETE", f"/v2/allocations/{CONSUMER}", **HEADERS)
        wait_for("other accelerators", lambda: len(runs()) > 1 and all(names()) and names())
        wait_for("Envoy", lambda: runs()[-1] == [f"--device={name}" for name in names()])
    finally:
        process.terminate()
        _, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, error
    assert names() == []
    assert log.read_text().splitlines()[-1].startswith("rm --force")
