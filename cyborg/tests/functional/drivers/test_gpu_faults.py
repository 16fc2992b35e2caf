# SPDX-License-Identifier: Apache-2.0
"""Faults that GPUs' own drivers tell of make them unhealthy."""

from __future__ import annotations

import pathlib
import time

from cyborg.agent import discovery
from cyborg.drivers import kernel_log, registry
from cyborg.tests.contract import passes
from cyborg.tests.gpu_log import TOLD, XIDS, healths

FALLEN = (
    "6,1{number},{time},-;NVRM: Xid (PCI:{slot}): {xid}, pid='<unknown>', name=<unknown>, GPU has "
    "fallen off the bus.\n SUBSYSTEM=pci\n"
)


def xid(slot: str, number: int, seconds: float = 5) -> str:
    return FALLEN.format(number=1, time=int(seconds * 1_000_000), slot=slot, xid=number)


def test_a_gpu_with_a_listed_xid_is_unhealthy_until_an_administrator_says_so(simulate, log, kept):
    simulated = simulate({"cards": [{"card": "t4", "count": 2}]})
    first, second = simulated.card("t4"), simulated.card("t4", 1)
    slot = first.removesuffix(".0")

    def told(*lines: str) -> list[str | None]:
        seen = simulated.call(healths, "nvidia_gpu_driver", kept + XIDS, log, list(lines))
        assert {each[second] for each in seen} == {None}
        return [each[first] for each in seen]

    sentence = f"NVIDIA's driver has logged Xid 79 for the GPU at {slot}"
    assert told("", xid(slot, 31), xid(slot, 79)) == [None, None, sentence]
    # The next agent knows it, though the kernel has forgotten.
    pathlib.Path(log).write_text("")
    assert told("", TOLD.format(time=9, slot=slot)) == [sentence, None]


def told_without_a_boot_id(text: str, log: str, boot: str) -> tuple[list[str | None], str]:
    """The health of each card while the boot id is in another file, and the driver's error."""
    kernel_log.PATH, kept = log, kernel_log._BOOT_ID
    kernel_log._BOOT_ID = boot
    try:
        loaded = registry.load(passes.configured(text, ["nvidia_gpu_driver"], "host-1"))
        found = discovery.Discovery("host-1", loaded.drivers, timeout=60).run()
    finally:
        kernel_log._BOOT_ID = kept
    devices = found.devices["nvidia_gpu_driver"]
    return [device.unhealthy for device in devices], found.errors["nvidia_gpu_driver"]


def test_a_boot_id_that_cannot_be_read_heals_no_gpu(simulate, log, kept, tmp_path):
    simulated = simulate({"cards": ["t4"]})
    text, lines = kept + XIDS, [xid(simulated.card("t4").removesuffix(".0"), 48)]
    simulated.call(healths, "nvidia_gpu_driver", text, log, lines)
    pathlib.Path(log).write_text("")
    path = tmp_path / "boot_id"
    for boot in (None, b"", b"nonsense\n", b"\xff\xfe\0\n"):
        if boot is not None:
            path.write_bytes(boot)
        (said,), error = simulated.call(told_without_a_boot_id, text, log, str(path))
        assert "Xid 48" in (said or ""), boot
        assert f"{path} cannot be read" in error


def told_when_facts_can_be_read(text: str, log: str, facts: str) -> list[str | None]:
    """The health of each card, told by an agent that could not read the facts at first."""
    kernel_log.PATH, path = log, pathlib.Path(facts)
    loaded = registry.load(passes.configured(text, ["nvidia_gpu_driver"], "host-1"))
    agent = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    path.parent.mkdir()
    path.symlink_to(path)
    assert facts in agent.run().errors["nvidia_gpu_driver"]
    path.unlink()
    return [device.unhealthy for device in agent.run().devices["nvidia_gpu_driver"]]


def test_an_xid_is_not_missed_while_what_is_kept_cannot_be_read(simulate, log, kept, tmp_path):
    simulated = simulate({"cards": ["t4"]})
    pathlib.Path(log).write_text(xid(simulated.card("t4").removesuffix(".0"), 48))
    facts = str(tmp_path / "facts/gpu_devices.json")

    (said,) = simulated.call(told_when_facts_can_be_read, kept + XIDS, log, facts)

    assert "Xid 48" in (said or "")


def test_a_gpu_recovers_by_itself_if_the_operator_wants_that(simulate, log, kept):
    simulated = simulate({"cards": ["t4"]})
    card, text = simulated.card("t4"), f"{kept}{XIDS}xid_recovery = 600\n"
    lines = [xid(card.removesuffix(".0"), 79, time.monotonic() - ago) for ago in (1000, 1)]

    seen = simulated.call(healths, "nvidia_gpu_driver", text, log, lines)

    assert [each[card] is None for each in seen] == [True, False]


def test_a_log_that_cannot_be_read_is_reported_and_costs_no_device(simulate, tmp_path, kept):
    simulated = simulate({"cards": ["t4"]})

    (only,) = simulated.call(_without_log, str(tmp_path / "none"), kept + XIDS)

    assert "give the agent CAP_SYSLOG" in only.errors["nvidia_gpu_driver"]
    assert len(only.devices["nvidia_gpu_driver"]) == 1


def _without_log(path: str, text: str) -> list[passes.Pass]:
    kernel_log.PATH = path
    return passes.run(["nvidia_gpu_driver"], text)


def test_an_amd_gpu_with_uncorrectable_errors_is_unhealthy(simulate, log, kept):
    simulated = simulate({"cards": ["mi300x"]})
    card = simulated.card("mi300x")
    simulated.files.put(f"{simulated.path(card)}/ras/gfx_err_count", "ue: 0\nce: 0")
    wrong = f"The GPU {card} has had uncorrectable errors of its memory or logic: umc"
    for umc, option, told in (
        ("ue: 0\nce: 7", "", None),
        ("ue: 2\nce: 0", "ras_uncorrectable_errors = 0", None),
        ("ue: 2\nce: 0", "", wrong),
    ):
        simulated.files.put(f"{simulated.path(card)}/ras/umc_err_count", umc)
        text = f"{kept}[amd_gpu_driver]\n{option}\n"
        assert simulated.call(healths, "amd_gpu_driver", text, log, [""]) == [{card: told}]


def test_an_amd_gpu_with_errors_is_healthy_when_an_administrator_says_so(simulate, log, kept):
    simulated = simulate({"cards": ["mi300x"]})
    card = simulated.card("mi300x")
    counts = f"{simulated.path(card)}/ras/umc_err_count"
    text = f"{kept}[amd_gpu_driver]\nheal_by_word = true\n"
    told = [TOLD.format(time=time, slot=card.removesuffix(".0")) for time in (7, 8)]

    def seen(errors: int, *lines: str) -> list[bool]:
        simulated.files.put(counts, f"ue: {errors}\nce: 0")
        found = simulated.call(healths, "amd_gpu_driver", text, log, list(lines))
        return [each[card] is None for each in found]

    assert seen(2, "", told[0], "") == [False, True, True]
    # Each is another agent: the word counts for what had been counted when it was said.
    assert seen(2, "") == [True]
    assert seen(3, "", told[1]) == [False, True]
    # The driver was loaded again, and counts from 0.
    assert seen(0, "") == [True]
    assert seen(1, "") == [False]
