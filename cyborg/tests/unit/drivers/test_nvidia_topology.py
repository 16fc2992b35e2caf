# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's tool prints of the links between GPUs."""

from __future__ import annotations

import pytest

from cyborg.drivers.nvidia import topology

PLACES = "0, 00000000:C1:00.0\n1, 00000000:17:00.0\n2, 00010000:03:00.0\n"
ROWS = {
    "\t": "\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m",
    "GPU0\t": " X \tNV12\tSYS\tPIX\t0-31,64-95\t0\t\tN/A",
    "GPU1\t": "NV12\t X \tNV4\tSYS\t0-31,64-95\t0\t\tN/A",
    "GPU2\t": "SYS\tNV4\t X \tPXB\t32-63,96-127\t1\t\tN/A",
    "NIC0\t": "PIX\tSYS\tPXB\t X ",
    "\n": "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks",
}


def text(**changed: str) -> str:
    rows = {**ROWS, **{f"{name}\t": row for name, row in changed.items()}}
    return "\n".join(name + row for name, row in rows.items() if row)


def test_links_are_by_address_whatever_else_is_shown():
    assert topology.peers(text(), PLACES) == {
        "0000:c1:00.0": {"0000:17:00.0": 12},
        "0000:17:00.0": {"0000:c1:00.0": 12, "10000:03:00.0": 4},
        "10000:03:00.0": {"0000:17:00.0": 4},
    }


@pytest.mark.parametrize(
    ("matrix", "places"),
    [
        (text(), ""),
        (text(), PLACES[:40]),
        (text(GPU1=""), PLACES),
        (text(GPU1="SYS\t X \tNV4"), PLACES),
        (text(GPU2="SYS\tNV6\t X "), PLACES),
        (text()[:60], PLACES),
    ],
)
def test_what_is_not_whole_is_refused(matrix, places):
    with pytest.raises(ValueError, match="NVIDIA's tool has shown"):
        topology.peers(matrix, places)
