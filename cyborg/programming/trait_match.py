# SPDX-License-Identifier: Apache-2.0
"""Whether what a request group asks for can ever be true, by the traits that programs give.

A function ``why_…`` returns the reason as the end of a sentence, or None if there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg.common import errors
from cyborg.common.request_groups import REQUIRED, RequestGroup
from cyborg.db import models
from cyborg.drivers import base
from cyborg.peers import answers, clients, glance
from cyborg.programming import image_match, program

#: Seconds that a request waits for Glance, which is asked again before anything is written.
_PATIENCE = 5.0


def traits(facts: Iterable[models.Fact]) -> set[str]:
    """The traits of a deployable with those attributes."""
    return {each.value for each in facts if each.key.startswith(base.TRAIT_PREFIX)}


def when_programmed(
    group: RequestGroup, facts: Collection[models.Fact], vendor: str
) -> set[str]:
    """The traits of a deployable once it runs what the group asks for.

    If its function is not known, it may bring any that is required.
    """
    old = {each.value for each in facts if each.key == program.TRAIT_KEY}
    if group.function_id is not None:
        brought = {program.function_trait(vendor, group.function_id)}
    else:
        brought = {name for name in group.required if program.is_function_trait(name)}
    return (traits(facts) - old) | brought


def why_other_traits(
    asked: Mapping[str, str], has: Collection[str], then: Collection[str]
) -> str | None:
    """Why one that has traits now, and others then, does not have those that are asked for."""
    for trait, how in asked.items():
        if how != REQUIRED:
            if trait in has:
                return f"trait {trait} is {how}"
            if trait in then:
                return f"trait {trait} is {how}, which comes with what the group asks for"
        elif trait not in then:
            goes = ", which goes with what it runs now" if trait in has else ""
            return f"trait {trait} is {how}{goes}"
    return None


def why_never(group: RequestGroup, image: glance.Image | None = None) -> str | None:
    """Why no deployable can have what the group asks for, with that image if it is known."""
    what = program.of_group(group)
    if image is not None and (why_not := image_match.why_other_function(image, what)):
        return f"image {image.uuid} does not fit: {why_not.removesuffix('.')}"
    function = known(group, image).function_id
    if function is None:
        return None
    ran = what if group.function_id else f"{what}, whose function is {function},"
    for trait in group.traits:
        if not program.is_function_trait(trait) or group.traits[trait] != REQUIRED:
            continue
        if not program.may_be_trait_of(trait, function):
            return f"trait {trait} is {REQUIRED}, which no deployable with {ran} has"
    return None


def warnings(groups: Iterable[Mapping[str, str]]) -> list[str]:
    """What may go wrong with binds of a profile with those groups: sentences."""
    return [
        f"groups[{index}] asks for {program.of_group(group)} and requires no trait of a function: "
        "a card that runs one function for all its guests is offered while it is partly used with "
        "another one, and such a boot fails. Require the function's trait, and let a function pool "
        "keep such cards ready."
        for index, group in enumerate(map(RequestGroup.parse, groups))
        if group.names_program and not any(map(program.is_function_trait, group.required))
    ]


def known(group: RequestGroup, image: glance.Image | None) -> RequestGroup:
    """The group with the function of the image that is written for it, if that is known."""
    if group.function_id or image is None:
        return group
    return replace(group, function_id=image.function_id)


def why_of_no_use(
    groups: Iterable[RequestGroup], deployable: models.Deployable, image: glance.Image
) -> str | None:
    """Why a deployable with that image would serve none of the groups, as a sentence.

    None if it would serve one, or if there is none.
    """
    why_not = None
    for asked in groups:
        group = known(asked, image)
        wants = {name: how for name, how in group.traits.items() if program.is_function_trait(name)}
        then = when_programmed(group, deployable.facts, deployable.function_vendor)
        why_not = why_other_traits(wants, then, then)
        if why_not is None:
            return None
    return f"Image {image.uuid} does not give what is asked for: {why_not}." if why_not else None


def look_up(conf: cfg.ConfigOpts, group: RequestGroup) -> glance.Image | None:
    """The image that would be written for a group, if it may contradict the group.

    None as well if Glance does not say: a conductor looks again before it writes anything.
    """
    what = program.of_group(group)
    given = [group.image_uuid, group.function_id, group.function_name]
    several = sum(each is not None for each in given) > 1
    named = what and group.function_id is None
    asks_trait = any(program.is_function_trait(trait) for trait in group.traits)
    may_contradict = several or (named and asks_trait)
    if not may_contradict or not clients.configured(conf, "glance"):
        return None
    try:
        with answers.within(_PATIENCE):
            return glance.find_image(
                conf,
                uuid=what.image_uuid,
                function_id=what.function_id,
                function_name=what.function_name,
            )
    except (glance.NoImage, ka_exc.ClientException):
        return None


def refuse_groups(conf: cfg.ConfigOpts, groups: Iterable[Mapping[str, str]]) -> None:
    """Return if none of a profile's groups contradicts itself; see :func:`refuse`."""
    for index, group in enumerate(groups):
        refuse(conf, RequestGroup.parse(group), f"groups[{index}] can never be bound")


def refuse(conf: cfg.ConfigOpts, group: RequestGroup, sentence: str) -> None:
    """Return if a group does not contradict itself, as far as that is known now.

    :raises Invalid: it does; ``sentence`` says what follows
    """
    why_not = why_never(group) or why_never(group, look_up(conf, group))
    if why_not:
        raise errors.Invalid(f"{sentence}: {why_not}.")
