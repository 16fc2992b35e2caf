# SPDX-License-Identifier: Apache-2.0
"""Manifests, as the types of Kubernetes' own client read them."""

from __future__ import annotations

from typing import Any

from kubernetes import client


def as_read(document: dict[str, Any]) -> Any:
    """What is left of a manifest when its type has read it, which drops what is unknown."""
    read = _model(document).from_dict(document)
    return client.ApiClient().sanitize_for_serialization(read)


def _model(document: dict[str, Any]) -> Any:
    """The type of a manifest, in the client's newest form of it."""
    version = document["apiVersion"].rpartition("/")[2].capitalize()
    names = (f"{version}{document['kind']}", f"Resource{version}{document['kind']}")
    return next(found for name in names if (found := getattr(client, name, None)))
