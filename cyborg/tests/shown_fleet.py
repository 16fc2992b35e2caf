# SPDX-License-Identifier: Apache-2.0
"""A small fleet with something of everything that the status page shows, and hostile names."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, profiles
from cyborg.db import models
from cyborg.drivers import base
from cyborg.hosts import flags
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.programming import operations
from cyborg.states import allocation_states
from cyborg.tests import boots, hosts, leaving

#: Text that would be markup, turn what is beside it around, and fill more than a window.
SCRIPT = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
HOSTILE = f"{SCRIPT}\u202e\u2067{'x' * 10_000}"
NAME = HOSTILE[:200]

GPUS = 4
#: An own project's, and another's, whose name nobody of the first may see.
PROJECTS = ("research", "competitor")
_HOUR_MS = 3_600_000
_H100 = "NVIDIA H100 80GB HBM3"
#: Those of the first card.
READINGS = {"0000:19:00.0": {"temperature_celsius": 52.5, "power_watts": 305.5}}


def _gpu(host: str, number: int, unhealthy: str | None = None) -> base.Device:
    places = [f"0000:{0x19 + 16 * each:x}:00.0" for each in range(GPUS)]
    place = places[number]
    domain, bus, rest = place.split(":")
    info = {"domain": domain, "bus": bus, "device": rest[:2], "function": "0"}
    handle = base.AttachHandle(attach_type="PCI", attach_info=info)
    part = hosts.deployable(
        f"{host}_{place}",
        (number,),
        resource_class="PGPU",
        attach_handles=(handle,),
        traits=("CUSTOM_GPU_PRODUCT_ID_2330",),
        attributes={
            "numa_node": number // 2,
            "link": "32.0 GT/s x16",
            "nvlink_peers": " ".join(each for each in places if each != place),
        },
        cleans=True,
    )
    path = base.ControlPath(cpid_type="PCI", cpid_info=info)
    changes = {"type": "GPU", "vendor": "NVIDIA", "control_path": path, "unhealthy": unhealthy}
    return hosts.device("", part, model=_H100, **changes)


def _fpga(host: str, number: int) -> base.Device:
    name = f"{host}_card_{number}"
    root = hosts.deployable(name, (), num_accelerators=0)
    regions = (
        hosts.deployable(
            f"{name}_region_{each}",
            range(16 * each, 16 * each + 16),
            parent=name,
            program_mode="dynamic" if number else None,
            attributes={"numa_node": 1, "link": "16.0 GT/s x16"},
        )
        for each in range(2)
    )
    info = {"domain": "0000", "bus": f"{0x3B + number:x}", "device": "00", "function": "0"}
    path = base.ControlPath(cpid_type="PCI", cpid_info=info)
    changes = {"model": "Alveo U250", "vendor": "Xilinx", "control_path": path}
    return hosts.device("", root, *regions, **changes)


def make(ctx: Sequence[context.RequestContext]) -> None:
    """Fill the database; the projects are those of the two callers."""
    for host in ("gpu-1", "gpu-2"):
        ill = "Xid 79: the GPU has fallen off the bus." if host == "gpu-2" else None
        cards = [_gpu(host, each, ill if each == 3 else None) for each in range(GPUS)]
        hosts.apply(*cards, host=host, readings=READINGS)
    hosts.apply(_fpga("fpga-1", 0), _fpga("fpga-1", 1), host="fpga-1")
    hosts.apply(host="old-1")
    for number, caller in enumerate(ctx):
        _bind(caller, "gpu-1", f"gpu-1_0000:{0x19 + 16 * number:x}:00.0", 1, "PGPU")
        _bind(caller, "fpga-1", f"fpga-1_card_0_region_{number}", 5, "FPGA")
    _make_states(ctx[0])
    with db.writer() as session:
        _age_history(session)


def _bind(ctx: context.RequestContext, host: str, name: str, count: int, kind: str) -> None:
    group = {f"resources:{kind}": "1"}
    where = {"hostname": f"{host}.example", "device_rp_uuid": provider_uuid(name)}
    boots.bind(ctx, boots.arqs(ctx, count, group), models.new_uuid(), **where)


def _make_states(ctx: context.RequestContext) -> None:
    """One of each kind that is not well."""
    profiles.create_profile(name="h100", groups=[{"resources:PGPU": "1"}], description=None)
    failed, started, *_ = boots.arqs(ctx, 3, {"resources:PGPU": "1"})
    parts = hosts.deployables()
    with db.writer() as session:
        arq, host, device = models.Arq, models.Host, models.Device
        why = {"state_reason": "The provider has no free attach handle."}
        db.update(session, arq, arq.uuid == failed, state=models.BIND_FAILED, **why)
        db.update(session, arq, arq.uuid == started, state=models.BIND_STARTED)
        db.update(session, arq, device_profile_name="h100")
        db.update(session, host, host.name == "old-1", down=True)
        db.update(session, host, host.name == "gpu-2", driver_errors={"nvidia": "NVML: no driver"})
        gone = parts[-1].device_id
        db.update(session, device, device.id == gone, missing=True)
        for number, reason in ((6, None), (5, "The disk did not answer.")):
            of_card = models.AttachHandle.deployable_id == parts[number].id
            handle = session.scalars(sa.select(models.AttachHandle).where(of_card)).one()
            leaving.left(session, handle)
            its = models.AttachHandle.id == handle.id
            db.update(session, models.AttachHandle, its, left_reason=reason)
        regions = [part for part in parts if part.program_mode]
        session.add_all(_operations(regions))
        session.add_all(_others())
    flags.disable_device(parts[2].device.uuid, "The fan is replaced.")
    flags.taint_device(parts[1].device.uuid, "It runs the next firmware.")


def _operations(regions: Sequence[models.Deployable]) -> list[models.Operation]:
    states = (operations.WRITING, operations.QUEUED, operations.SUCCEEDED, operations.FAILED)
    return [
        models.Operation(
            uuid=models.new_uuid(),
            deployable_uuid=region.uuid,
            active=region.uuid if state in {operations.WRITING, operations.QUEUED} else None,
            image_name=f"gzip-{number}.awsxclbin",
            asked_by="user admin",
            asked_ms=db.now_ms(),
            ended_ms=None if number < 2 else db.now_ms(),
            state=state,
            error="The host could not write it." if state == operations.FAILED else None,
            fault=operations.BROKEN if state == operations.FAILED else None,
            history=[{"at_ms": 1764400000000, "text": "The image is fetched."}],
        )
        for number, (region, state) in enumerate(zip([*regions, *regions], states, strict=True))
    ]


def _others() -> list[models.Base]:
    made: list[models.Base] = [
        models.FunctionPool(
            name="gzip",
            function_id="gzip",
            function_plain="GZIP",
            free=4,
            max_devices=2,
            reason="No deployable of the pool is free.",
        )
    ]
    for number, project in enumerate(PROJECTS):
        failed = allocation_states.FAILED if number else allocation_states.ACTIVE
        consumer = {"uuid": models.new_uuid(), "type": "JOB", "name": f"train-{project}"}
        made.append(
            models.Allocation(
                uuid=consumer["uuid"],
                project_id=project,
                user_id="somebody",
                consumer_type="JOB",
                consumer_name=consumer["name"],
                state=failed,
                state_reason="No host has eight free accelerators." if number else None,
                request={"consumer": consumer, "device_profile_name": "h100"},
                alternative=0,
                plan=[],
                accelerators=0,
            )
        )
    return made


def _age_history(session: orm.Session) -> None:
    """Have things happened one after the other, and some ended."""
    entry = models.HistoryEntry
    device_uuid = session.scalars(sa.select(models.Device.uuid).order_by(models.Device.id)).first()
    kinds = (history.USED, history.CLEANED, history.USED, history.UNHEALTHY)
    ages = ((70, 40), (40, 39), (30, 12), (9, 7))
    found = [
        {
            "uuid": models.new_uuid(),
            "kind": kind,
            "device_uuid": device_uuid,
            "project_id": PROJECTS[0] if kind == history.USED else None,
            "reason": "ECC errors were seen." if kind == history.UNHEALTHY else None,
        }
        for kind in kinds
    ]
    history.write(session, found)
    for row, (begun, ended) in zip(found, ages, strict=True):
        times = {
            "started_ms": entry.started_ms - begun * _HOUR_MS,
            "ended_ms": entry.started_ms - ended * _HOUR_MS,
        }
        db.update(session, entry, entry.uuid == row["uuid"], **times)


def poison() -> None:
    """Let every name and sentence that comes from others be hostile."""
    names: dict[type[models.Base], dict[str, object]] = {
        models.Device: {
            "vendor": NAME,
            "model": NAME,
            "std_board_info": HOSTILE,
            "vendor_board_info": HOSTILE,
            "unhealthy": HOSTILE,
            "taint_reason": HOSTILE,
        },
        models.Host: {"node": NAME, "driver_errors": {NAME: HOSTILE}},
        models.Attribute: {"value": NAME},
        models.AttachHandle: {"left_reason": HOSTILE},
        models.Arq: {
            "device_profile_name": NAME,
            "hostname": NAME,
            "state_reason": HOSTILE,
            "private_reason": HOSTILE,
            "project_id": NAME,
        },
        models.Allocation: {
            "consumer_type": NAME[:100],
            "consumer_name": NAME,
            "state_reason": HOSTILE,
            "private_reason": HOSTILE,
        },
        models.Operation: {"image_name": NAME, "asked_by": NAME, "error": HOSTILE},
        models.FunctionPool: {"name": NAME, "function_id": NAME, "reason": HOSTILE},
        models.HistoryEntry: {"actor": NAME, "private_reason": HOSTILE, "hostname": NAME},
    }
    with db.writer() as session:
        for model, values in names.items():
            session.execute(sa.update(model).values(**values))
