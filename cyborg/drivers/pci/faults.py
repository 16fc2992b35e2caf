# SPDX-License-Identifier: Apache-2.0
"""Faults of cards in the kernel's log, known by what they say and not by one form of words.

Drivers' own lines, Xids and SXids of NVIDIA's, and those of PCIe advanced error reporting (AER).
"""

from __future__ import annotations

import re

from cyborg.drivers import kept_facts, kernel_log
from cyborg.drivers.pci import sysfs
from cyborg.drivers.pci.snapshot import Snapshot

#: A record: its priority, number and microseconds since the host started, then the text.
_RECORD = re.compile(rb"^\d+,\d+,(?P<time>\d+),[^;]*;(?P<text>.*)")
#: What a line holds that may tell something; no other is looked at any closer.
_MAY_TELL = re.compile(
    rb"NVRM|nvidia|SXid|amdgpu|habanalabs|accel|i915|xe |intel_vpu|probe|Fatal\)|cyborg: "
)
_AT = r"(?P<at>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_ADDRESS = re.compile(_AT)
#: NVIDIA's driver names a GPU in one line, and in the next what has become of it.
_NAMES = re.compile(rf"^(?:NVRM|nvidia)\b.*?{_AT}")
PROBE = "its driver could not take it"
_UNCORRECTED = r"Uncorrect(?:ed|able) \((?P<said>Fatal|Non-Fatal)\)"
#: Drivers that write such words of their cards, or the class of a card's device.
_OWNERS = "amdgpu|habanalabs|accel|i915|xe|intel_vpu"
_OWN_WORDS = (
    r"fatal error during gpu init|device_ip_init failed|[hs]w[_ ]init of IP block \S+ failed"
    r"|H/W init failed|failed to initiali[sz]e(?!.*(?:parser|backlight|display|hdcp|audio|pxp))"
    r"|(?:lost from|fallen off)(?: the)? bus|not usable|wedged(?!, but recovered)"
    r"|reset(?:\(\d+\))? failed|failed to reset"
)
#: After that of a queue a whole reset follows, and says how it ended.
_NO_QUEUE = r"(?!.*(?:Ring \S+ reset failed|failed to reset legacy queue)).*"
#: The first that fits a line says which fault it is; a line without an address is of the last GPU.
_RULES = tuple(
    (re.compile(rule), word)
    for rule, word in (
        (rf"NVRM: Xid \((?:PCI:)?{_AT}[^)]*\): (?P<said>\d+)\b", "Xid {said}"),
        (rf"SXid \((?:PCI:)?{_AT}[^)]*\): (?P<said>\d+), Fatal", "SXid {said}"),
        (r"NVRM: .*probe routine failed", PROBE),
        (rf"(?<!nouveau: )probe of {_AT} failed", PROBE),
        (rf"(?<!nouveau ){_AT}: probe with driver \S+ failed", PROBE),
        (r"NVRM: .*(?P<said>fallen off the bus|(?i:rm_?init_?adapter) failed)", "{said}"),
        (rf"{_UNCORRECTED} error (?:message )?received(?: from)?:? {_AT}", "told {said}"),
        (rf"{_AT}: (?:AER: )?PCIe Bus Error: severity={_UNCORRECTED}", "bus {said}"),
        (
            rf"^(?:{_OWNERS}) (?:{_AT}|(?P<node>\w+)): {_NO_QUEUE}(?P<said>(?i:{_OWN_WORDS}))",
            "{said}",
        ),
    )
)
#: Faults of the host's driver alone, when it begins with the card.
_BEGINNING = re.compile("init|take it", re.IGNORECASE)
_KIND = "log"

#: Faults of a function: when each was logged last, in microseconds, and how often.
Logged = dict[str, tuple[int, int]]


class FaultLog:
    """The faults since the host started, by the function or the slot that a line names.

    They are kept for the next agent too, as the kernel forgets the oldest records. A reboot ends
    them, and an administrator's word.
    """

    def __init__(self, kept: kept_facts.KeptFacts) -> None:
        self._kept = kept
        self._named: str | None = None
        #: The walk of the pass in which the log was read last.
        self._read: Snapshot | None = None
        self.log = kernel_log.KernelLog()
        #: When an administrator said last that a slot is healthy, in microseconds.
        self.said: dict[str, int] = {}

    def read(self, functions: Snapshot) -> None:
        """Take in what has been logged since the last pass. The log is read once a pass.

        :raises OSError: what is kept cannot be read; the log has it for the next call
        """
        if self._read is functions:
            return
        # The log shows a line once: none is taken that could not be noted.
        self._kept.all(_KIND)
        for line in self.log.lines():
            self._take(line)
        self._read = functions

    def of(self, address: str) -> Logged:
        """The faults of a function or of its slot."""
        slot = address.rpartition(".")[0]
        return {**self._at(slot), **self._at(address)}

    def _at(self, place: str) -> Logged:
        """Those that are kept count as well if it cannot be told when they were logged."""
        kept = self._kept.get(_KIND, place)
        if not isinstance(kept, dict) or self.log.boot not in {"", kept.get("boot")}:
            return {}
        return {word: (when, count) for word, (when, count) in kept["logged"].items()}

    def _keep(self, place: str, logged: Logged) -> None:
        self._kept.set(_KIND, place, {"boot": self.log.boot, "logged": logged})

    def _take(self, line: bytes) -> None:
        record = _RECORD.match(line)
        if record is None or not _MAY_TELL.search(record["text"]):
            return
        word = kernel_log.WORD.match(line)
        if word is not None:
            self._heal(kernel_log.slot(word["slot"]), int(record["time"]))
            return
        text = record["text"].decode("ascii", "replace")
        if named := _NAMES.search(text):
            self._named = _place(named["at"])
        told = _told(text)
        place = (told[0] or self._named) if told else None
        if told is None or place is None:
            return
        logged, when = self._at(place), int(record["time"])
        last, count = logged.get(told[1], (-1, 0))
        if when > last:  # the agent before may have taken it in
            self._keep(place, {**logged, told[1]: (when, count + 1)})

    def _heal(self, slot: str | None, when: int) -> None:
        if slot is None:
            return
        self.said[slot] = when
        for place in self._kept.all(_KIND):
            if place == slot or place.rpartition(".")[0] == slot:
                self._keep(place, {})


def present(logged: Logged, driver: str | None) -> list[str]:
    """The faults of a function that count by themselves, whichever driver offers it.

    What went wrong as the host's driver began with it is no fault for a guest's driver, and one
    that has the function could take it.
    """
    words = [word for word in logged if not word.startswith(("Xid ", "told", "bus"))]
    if driver is not None:
        words = [word for word in words if word != PROBE]
    if driver is not None and "vfio" in driver:
        words = [word for word in words if not _BEGINNING.search(word)]
    return sorted(words)


def times(logged: Logged, severity: str) -> int:
    """The number of PCIe errors of a severity (``Fatal``, ``Non-Fatal``) among these faults."""
    # Two lines tell of most errors.
    _when, told = logged.get(f"told {severity}", (0, 0))
    _when, of_bus = logged.get(f"bus {severity}", (0, 0))
    return max(told, of_bus)


def _told(text: str) -> tuple[str | None, str] | None:
    """The function or slot of a fault, if the line names it, and the fault; None if it has none."""
    for rule, word in _RULES:
        if found := rule.search(text):
            groups = found.groupdict()
            at, node = groups.get("at"), groups.get("node")
            if node is not None:
                at = function_of_node(node)
                if at is None:
                    return None
            return _place(at) if at else None, word.format(said=groups.get("said"))
    return None


def _place(at: str) -> str:
    domain, _colon, rest = at.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}"


def function_of_node(node: str) -> str | None:
    """The PCI function of a device of an accelerator's driver, such as hl0 or accel0, or None."""
    links = " ".join(sysfs.target(f"/sys/class/{each}/{node}") for each in ("accel", "habanalabs"))
    shown = sysfs.optional(f"/sys/class/habanalabs/{node}/pci_addr") or ""
    places = [each["at"] for each in _ADDRESS.finditer(f"{links} {shown}")]
    return places[-1] if places else None
