# SPDX-License-Identifier: Apache-2.0
"""The functions that OpenStackClient asks of a plugin.

It has a name of its own, since OpenStackClient passes over a plugin with the name of one of its
own parts. So its commands are loaded after those of OpenStackClient.
"""

from __future__ import annotations

import argparse
from typing import Any

API_NAME = "cyborg"
API_VERSION_OPTION = "os_cyborg_api_version"
DEFAULT_API_VERSION = "2"


def make_client(instance: Any) -> Any:
    """The accelerator proxy of openstacksdk."""
    return instance.sdk_connection.accelerator


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add no option: OpenStackClient has ``--os-accelerator-api-version``."""
    return parser


def check_api_version(_version: str) -> bool:
    """True: commands can be loaded, and the microversion is settled with the server."""
    return True
