# SPDX-License-Identifier: Apache-2.0
"""The steps of one operation: the handler of ``program/<deployable>``.

First the image is found and held against the deployable, and Placement is asked who was given some
of it; then the deployable is put in doubt, so that Placement and everybody who binds leaves it
alone; then Placement is asked again who was faster; only then is anything written. Each step is
recorded before the next begins, so that whoever takes the work over goes on where it was left. An
operation that has begun to write ends when the host has said what is loaded, and not before.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import clients, errors, glance, rpc, work
from cyborg.drivers import base
from cyborg.placement import client
from cyborg.programming import image_match, operations, program, progress

#: Seconds that an operation waits in place until Placement is told, and between two looks.
PLACEMENT_WAIT = 2.0
_POLL = 0.05


def run(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    """Carry out the operation on a deployable from where it was left, if there is one."""
    try:
        _go_on(conf, claim)
    except (errors.CyborgError, ka_exc.ClientException) as exc:
        operations.note_wait(claim, str(exc))
        raise


def _go_on(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    claim.checkpoint()
    situation = progress.read(claim)
    if situation is None:
        return
    state = situation.operation.state
    # Nobody knows whether whoever began to write it was answered.
    taken_over = state == operations.WRITING
    try:
        recovers = situation.operation.asked_by == operations.RECOVERY
        if state == operations.QUEUED and recovers and progress.put_back(claim):
            state = operations.RESERVING
        if state == operations.QUEUED:
            image = _image(conf, situation)
            what = program.of_operation(situation.operation)
            if not image_match.is_run(image, what, situation.deployable):
                # Not only below: their binds would be refused while the deployable is in doubt.
                with contextlib.suppress(client.NotFound):
                    _refuse_consumers(client.Client(conf), claim, situation)
            if not progress.withdraw(claim, image):
                return
            state = operations.RESERVING
        if state == operations.RESERVING:
            _reserve(conf, claim, situation)
            if not progress.begin_to_write(claim):
                return
    except progress.Refused as exc:
        progress.refuse(claim, exc)
        return
    _write(conf, claim, taken_over=taken_over)


def _image(conf: cfg.ConfigOpts, situation: progress.Situation) -> glance.Image:
    """The image that the operation asks for.

    :raises Refused: there is none, or it does not fit the deployable, which may have lost what
        somebody has of it
    """
    if situation.deployable.in_doubt and situation.operation.asked_by != operations.RECOVERY:
        # Glance may be away, which is not needed for what is put back.
        raise progress.Refused(
            operations.CONFLICT, "It has lost what it ran, and that is put back first."
        )
    if not clients.configured(conf, "glance"):
        raise progress.Refused(
            operations.BROKEN, "There is no Glance: [glance] auth_type is not set for conductors."
        )
    what = program.of_operation(situation.operation)
    try:
        image = glance.find_image(
            conf,
            uuid=what.image_uuid,
            name=what.image_name,
            function_id=what.function_id,
            function_name=what.function_name,
        )
    except glance.NoImage as exc:
        raise progress.Refused(operations.INVALID, str(exc)) from exc
    misfit = image_match.misfit(
        image,
        what,
        device=situation.device,
        deployable=situation.deployable,
        attributes=situation.attributes,
    )
    if misfit:
        raise progress.Refused(operations.INVALID, f"Image {image.uuid} does not fit: {misfit}")
    return image


def _reserve(
    conf: cfg.ConfigOpts, claim: work.Claim, situation: progress.Situation
) -> None:
    """Return when Placement offers nothing of the deployable and nobody has any of it.

    :raises Refused: a consumer has an allocation of it
    """
    _await_placement(claim, situation.host.name)
    api, provider = client.Client(conf), situation.deployable.rp_uuid
    # Inventory of other classes is somebody else's, who has put it there and may leave it.
    ours = {each.value for each in situation.attributes if each.key == "rc"}
    if not api.is_withdrawn(provider, ours):
        raise work.TryLater(f"Placement still offers provider {provider}.")
    _refuse_consumers(api, claim, situation)


def _refuse_consumers(
    api: client.Client, claim: work.Claim, situation: progress.Situation
) -> None:
    """Return when nobody has any of the deployable but those who wait for this very program.

    :raises Refused: a consumer has an allocation of it
    """
    if situation.operation.asked_by == operations.RECOVERY:
        return
    provider = situation.deployable.rp_uuid
    others = api.consumers(provider) - progress.awaiting(claim)
    if others:
        raise progress.Refused(
            operations.CONFLICT,
            f"Consumer {min(others)} has an allocation of provider {provider} in Placement.",
        )


def _await_placement(claim: work.Claim, host: str) -> None:
    """Return when whatever was to be told to Placement has been told, as far as it takes that.

    That is left to the work ``placement/<host>``: a second one who tells Placement of the host
    could have read the database before the deployable was in doubt. A try that failed may have done
    so for another provider of the host, such as one that is gone and still has allocations.
    """
    rpc.kick()
    deadline = time.monotonic() + PLACEMENT_WAIT
    while work.is_untried(work.PLACEMENT, host):
        claim.checkpoint()
        if time.monotonic() >= deadline:
            raise work.TryLater(f"Placement is not told yet what host {host} offers.")
        time.sleep(_POLL)


def _write(conf: cfg.ConfigOpts, claim: work.Claim, *, taken_over: bool) -> None:
    claim.checkpoint()
    situation = progress.read(claim)
    if situation is None:
        return
    if situation.host.down:
        # Each question to a dead host would hold up a thread.
        raise work.TryLater(f"Host {situation.host.name} is down; it is asked when it reports.")
    try:
        answer = rpc.run_program(
            conf, situation.host.name, _step(situation), conf.programming.step_timeout
        )
    except rpc.BrokerUnreachable as exc:
        progress.restart_clocks(claim)
        raise work.TryLater(str(exc)) from exc
    except rpc.HostUnreachable as exc:
        raise work.TryLater(str(exc)) from exc
    except rpc.ProgramFailed as exc:
        unchanged = not exc.written and not taken_over
        progress.end_failed(claim, situation, exc, unchanged=unchanged)
    else:
        progress.end_well(claim, situation, answer)


def _step(situation: progress.Situation) -> rpc.ProgramStep:
    image: dict[str, Any] = situation.operation.image or {}
    path = situation.control_path
    return rpc.ProgramStep(
        driver=situation.deployable.driver_name,
        deployable=situation.deployable.name,
        deployable_uuid=situation.deployable.uuid,
        cpid_type=path.cpid_type,
        cpid_info=json.loads(path.cpid_info),
        attach_handles=tuple(
            base.AttachHandle(
                attach_type=handle.attach_type, attach_info=json.loads(handle.attach_info)
            )
            for handle in situation.handles
        ),
        image_uuid=image["uuid"],
        size=image["size"],
        hash_algo=image["hash_algo"],
        hash_value=image["hash_value"],
        function_id=image["function_id"],
        signature=image["signature"],
        asked_ms=situation.now_ms,
        agent_started=situation.host.report_started,
    )
