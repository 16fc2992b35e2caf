# SPDX-License-Identifier: Apache-2.0
"""Modules whose fixtures every room has; one of them names flaky tests.

A module comes after those that it imports, as pytest rewrites the asserts of each.
"""

from __future__ import annotations

MODULES = [
    "cyborg.tests.benchmark_tool",
    "cyborg.tests.glance_server",
    "cyborg.tests.placement_server",
    "cyborg.tests.service",
    "cyborg.tests.simulated.preload",
    "cyborg.tests.cloud",
    "cyborg.tests.compute",
    "cyborg.tests.fpga",
    "cyborg.tests.ironic_server",
    "cyborg.tests.keystone_server",
    "cyborg.tests.kube_node",
    "cyborg.tests.layouts_site",
    "cyborg.tests.listening",
    "cyborg.tests.openstack_command",
    "cyborg.tests.personas",
    "cyborg.tests.programmed_host",
    "cyborg.tests.reruns",
    "cyborg.tests.room_option",
    "cyborg.tests.scene",
    "cyborg.tests.simulated.live",
    "cyborg.tests.spdk_server",
]
