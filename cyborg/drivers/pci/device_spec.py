# SPDX-License-Identifier: Apache-2.0
"""The operator's list of PCI devices, in the grammar of Nova's ``[pci] device_spec``."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import logging
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from cyborg.drivers import base
from cyborg.drivers.pci.snapshot import Function, Snapshot, split

LOG = logging.getLogger(__name__)

T = TypeVar("T")
#: The permitted values of a key that only one driver has; None: any text.
Values = Set[str] | range | None

#: Parts of an address: name, digits, largest value. Nova calls the device number "slot".
_PARTS = (("domain", 4, 0xFFFFFFFF), ("bus", 2, 0xFF), ("slot", 2, 0x1F), ("function", 1, 0x7))
_KNOWN_KEYS = frozenset(
    {
        "vendor_id",
        "product_id",
        "address",
        "devname",
        "resource_class",
        "traits",
        "type",
        "exclude",
        "product",
    }
)
#: Standard resource classes that a device may have; any other becomes a custom one.
_STANDARD_CLASSES = frozenset({"FPGA", "PGPU", "VGPU"})
_TEXT_MAX = 100
_STANDARD_TRAIT = re.compile(r"(COMPUTE|HW|MISC|OWNER|STORAGE)_")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    """A regular expression for each part of an address, and the rest of what is known of it.

    ``domain`` is the text for the domain, and ``digits`` how many digits of an address are fixed.
    ``fits_parts`` says that the address of a PF fits its VFs too. With the name of an ``interface``
    any address fits a function that has it, and a PF's interface fits its VFs.
    """

    patterns: tuple[re.Pattern[str], ...]
    domain: str
    digits: int
    fits_parts: bool = False
    interface: str | None = None

    def matches(self, function: Function, functions: Snapshot) -> bool:
        """True if the function has the address."""
        if self.interface is not None:
            pf = functions.get(function.pf or "", function)
            return self.interface in (*function.netdevs, *pf.netdevs)
        if self.may_be(function.address):
            return True
        return self.fits_parts and function.pf is not None and self.may_be(function.pf)

    def may_be(self, address: str) -> bool:
        """True if it may be that of a function of which nothing else is known."""
        parts = split(address).values()
        return all(each.match(part) for each, part in zip(self.patterns, parts, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """The values that a matching device is reported with.

    ``exclude`` says that it is not reported: it stays with the host.
    """

    resource_class: str | None
    traits: tuple[str, ...]
    type: str | None
    exclude: bool


#: Tags of a device that no object of the list selects.
NO_TAGS = Tags(resource_class=None, traits=(), type=None, exclude=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(Tags):
    """One object of the list: what it matches, and what a matching device is reported with.

    ``product`` is the operator's name of the product. ``own`` are the values of keys that only one
    driver has.
    """

    vendor_id: str | None
    product_id: str | None
    address: _Address
    product: str | None
    own: Mapping[str, str]

    @property
    def digits(self) -> int:
        """The number of digits of ids and address that it fixes."""
        ids = (self.vendor_id, self.product_id)
        return sum(len(text) for text in ids if text is not None) + self.address.digits

    @property
    def is_exact(self) -> bool:
        """True if it names a product or a place, and not just a vendor."""
        return self.product_id is not None or self.address.digits > 0

    def matches(self, function: Function, functions: Snapshot) -> bool:
        """True if the function matches."""
        return (
            self.vendor_id in (None, function.vendor)
            and self.product_id in (None, function.device)
            and self.address.matches(function, functions)
        )


def parse(
    texts: Iterable[str],
    option: str = "[pci] device_spec",
    own: Mapping[str, Values] = MappingProxyType({}),
) -> tuple[Spec, ...]:
    """The specs of an option. ``own`` are further keys, each with its permitted values.

    None permits any text.

    :raises ValueError: a value is wrong; the message says where and how
    """
    return parse_objects(texts, option, lambda item: spec(item, option, own))


def parse_objects(
    texts: Iterable[str], option: str, parse_object: Callable[[Any], T]
) -> tuple[T, ...]:
    """Read every value of an option; each is a JSON object or a list of them.

    :raises ValueError: a value is wrong; the message says where and how
    """
    parsed = []
    for text in texts:
        try:
            value = json.loads(text)
        except ValueError as exc:
            raise ValueError(f"{option} {text!r} is not JSON: {exc}") from exc
        for item in value if isinstance(value, list) else [value]:
            try:
                parsed.append(parse_object(item))
            except ValueError as exc:
                raise ValueError(f"{option} {json.dumps(item)}: {exc}") from exc
    return tuple(parsed)


def unused(
    specs: Sequence[Spec], used: Set[int], functions: Snapshot, option: str, unfit: str
) -> list[str]:
    """A sentence for each object that selects nothing; ``used`` are the ids of those that do.

    ``unfit`` says why a driver may not take what one matches.
    """
    said = []
    for number, each in enumerate(specs, 1):
        if id(each) in used or any(map(each.address.may_be, functions.faults)):
            continue
        fitting = [name for name in functions if each.matches(functions[name], functions)]
        if not fitting:
            said.append(f"Object {number} of {option} matches nothing on this host")
            continue
        taken = (first_match(specs, functions[name], functions) is not each for name in fitting)
        is_taken = all(taken)
        if is_taken or not each.exclude:
            first = functions[fitting[0]]
            more = f" and {len(fitting) - 1} more" if len(fitting) > 1 else ""
            why = "an object before it matches, too" if is_taken else unfit
            said.append(f"Object {number} of {option} matches only {first.address}{more}: {why}")
    return said


def selecting_nothing(objects: Iterable[object], used: Set[int], sentence: str) -> list[str]:
    """The sentence, with its number, for each object whose id is not among those that are used."""
    numbers = (number for number, each in enumerate(objects, 1) if id(each) not in used)
    return list(map(sentence.format, numbers))


def absent(addresses: Iterable[str], functions: Snapshot, option: str) -> list[str]:
    """A sentence for each address of an option that no function of the host has."""
    missing = set(addresses) - functions.keys() - functions.unread
    return [f"{each} of {option} is no PCI function of this host" for each in sorted(missing)]


def first_match(
    specs: Iterable[Spec], function: Function, functions: Snapshot
) -> Spec | None:
    """The first spec that matches a function, or None."""
    return next((each for each in specs if each.matches(function, functions)), None)


def tags(item: Mapping[str, Any]) -> Tags:
    """The tags of one object.

    :raises ValueError: one of them is wrong
    """
    return Tags(
        resource_class=_resource_class(_text(item, "resource_class")),
        traits=_traits(_text(item, "traits")),
        type=_type(_text(item, "type")),
        exclude=_boolean(item, "exclude"),
    )


def spec(
    item: Any, option: str, own: Mapping[str, Values] = MappingProxyType({})
) -> Spec:
    """The spec of one object.

    :raises ValueError: it is wrong
    """
    if not isinstance(item, dict):
        raise ValueError("must be a JSON object")  # noqa: TRY004 - one error for every fault
    if ignored := sorted(item.keys() - _KNOWN_KEYS - own.keys()):
        LOG.warning("%s: %s means nothing here", option, ", ".join(ignored))
    return Spec(
        vendor_id=_identifier(item, "vendor_id"),
        product_id=_identifier(item, "product_id"),
        address=_address(item),
        product=_text(item, "product") or None,
        own={key: _one_of(item, key, values) for key, values in own.items() if key in item},
        **dataclasses.asdict(tags(item)),
    )


def _text(item: Mapping[str, Any], key: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} must be a text")
    return value


def _one_of(item: Mapping[str, Any], key: str, values: Values) -> str:
    value = item[key]
    if isinstance(values, range):
        if not isinstance(value, int) or value not in values:
            raise ValueError(f"{key} must be a number from {values[0]} to {values[-1]}")
        return str(value)
    if values is None:
        text = _text(item, key)
        if not text or len(text) > _TEXT_MAX:
            raise ValueError(f"{key} must have 1 to {_TEXT_MAX} characters")
        return text
    if isinstance(value, bool):
        value = str(value).lower()
    if value not in values:
        raise ValueError(f"{key} must be one of {sorted(values)}, not {value!r}")
    return str(value)


def _identifier(item: Mapping[str, Any], key: str) -> str | None:
    text = _text(item, key)
    if text in (None, "*"):
        return None
    if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]{1,4}", text):
        raise ValueError(f'{key} must be "*" or up to four hexadecimal digits, not {text!r}')
    return f"{int(text, 16):04x}"


def _address(item: Mapping[str, Any]) -> _Address:
    address, devname = item.get("address"), _text(item, "devname")
    if devname is not None:
        if address is not None:
            raise ValueError("address and devname cannot be given together")
        # An interface is on one card.
        digits = sum(width for _name, width, _largest in _PARTS)
        return dataclasses.replace(_globs("*:*:*.*"), digits=digits, interface=devname)
    if address is None:
        address = "*:*:*.*"
    if isinstance(address, str):
        return _globs(address)
    if isinstance(address, dict):
        return _expressions(address)
    raise ValueError("address must be a text or an object")


def _globs(text: str) -> _Address:
    head, _dot, function = text.partition(".")
    parts = head.split(":")
    if len(parts) > 3:
        raise ValueError(f"address {text!r} has too many colons")
    # A part that is left out, at the left end or between colons, fits anything.
    parts = ["*"] * (3 - len(parts)) + parts
    rules = zip([*parts, function], _PARTS, strict=True)
    globs = [_glob(text, part.strip(), *rule) for part, rule in rules]
    whole = "".join(globs)
    return _Address(
        patterns=tuple(re.compile(fnmatch.translate(glob)) for glob in globs),
        domain=globs[0],
        digits=sum(char in string.hexdigits for char in whole),
        fits_parts=not any(char in whole for char in "*?["),
    )


def _glob(address: str, text: str, name: str, width: int, largest: int) -> str:
    if not text:
        return "*"
    if any(char in text for char in "*?["):
        return text.lower()
    if not re.fullmatch(r"[0-9a-fA-F]+", text) or int(text, 16) > largest:
        raise ValueError(f"address {address!r} has a wrong {name}: {text!r}")
    return f"{int(text, 16):0{width}x}"


def _expressions(parts: Mapping[str, Any]) -> _Address:
    names = [name for name, _width, _largest in _PARTS]
    if unknown := parts.keys() - set(names):
        raise ValueError(f"address has {sorted(unknown)}; it may have {names}")
    try:
        patterns = tuple(re.compile(parts.get(name, ".*")) for name in names)
    except (re.error, TypeError) as exc:
        raise ValueError(f"address has a wrong regular expression: {exc}") from exc
    # The digits of an expression cannot be counted.
    fixed = sum(each.pattern != ".*" for each in patterns)
    return _Address(patterns=patterns, domain=patterns[0].pattern, digits=fixed)


def _resource_class(text: str | None) -> str | None:
    if text is None:
        return None
    name = _symbol(text)
    return name if name in _STANDARD_CLASSES else _custom(name)


def _traits(text: str | None) -> tuple[str, ...]:
    names = [_symbol(part) for part in (text or "").split(",") if part.strip()]
    return tuple(
        dict.fromkeys(name if _STANDARD_TRAIT.match(name) else _custom(name) for name in names)
    )


def _type(text: str | None) -> str | None:
    if text is not None and text not in base.DEVICE_TYPES:
        raise ValueError(f"type must be one of {sorted(base.DEVICE_TYPES)}, not {text!r}")
    return text


def _boolean(item: Mapping[str, Any], key: str) -> bool:
    value = item.get(key, False)
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false")  # noqa: TRY004 - as above
    return value


def _symbol(text: str) -> str:
    name = re.sub(r"[^A-Z0-9_]", "_", text.strip().upper())
    if not name:
        raise ValueError("resource_class must not be empty")
    return name


def _custom(name: str) -> str:
    return name if name.startswith("CUSTOM_") else f"CUSTOM_{name}"
