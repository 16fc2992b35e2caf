# SPDX-License-Identifier: Apache-2.0
"""Releases that go on behind an answer: nobody meets a handle before its host has cleaned it.

Nova's own client class, the real Placement, and an agent whose host steps hang or fail on demand.
The device has two handles, so that one can be held and one be free.
"""

from __future__ import annotations

import itertools

import pytest

from cyborg import work
from cyborg.db import models
from cyborg.tests.compute import Compute, NovaError
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import Site, until

pytestmark = pytest.mark.slow

FPGA = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
ONE_HELD, NONE_HELD = (2, 1), (2, 0)


@pytest.fixture
def profile(site: Site, compute: Compute) -> str:
    site.start(host_step=True, handles_per_device=2)
    return compute.make_profile(FPGA)


@pytest.fixture
def instance() -> str:
    return models.new_uuid()


def tried(site: Site, arq: str, times: int) -> str:
    """Wait until the host step of the ARQ's handle was tried so often; the last error, if any."""
    handle = site.held()[arq]

    def work_row() -> models.Work | None:
        rows = (row for row in site.work(work.HOST_STEP) if row.key == handle)
        return next((row for row in rows if row.attempts >= times), None)

    return str(site.hurry(work_row).last_error)


def assert_at_rest(site: Site, holders: set[str]) -> None:
    """Check that nobody but these ARQs holds a handle, and that Placement knows it."""
    # An attempt from before all works again may fail yet, and back off for half a minute.
    site.hurry(site.idle)
    assert site.held().keys() == holders
    assert site.offered() == NONE_HELD
    site.placement.assert_right("host-1")


@pytest.mark.every_database
def test_a_guest_never_meets_what_is_cleaned_after_its_predecessor(
    site: Site, compute: Compute, sink: NovaSink, profile: str, instance: str
) -> None:
    (old,) = compute.boot(profile, instance)
    site.hang("clean")
    compute.delete(instance)

    new = compute.request(profile, instance)

    assert compute.client.get_arq_uuids_for_instance(instance) == new
    (bound,) = compute.wait(instance, new)
    assert bound["state"] == models.BOUND
    assert bound["attach_handle_uuid"] != old["attach_handle_uuid"]
    assert compute.client.get_arqs_for_instance(instance) == [bound]
    with pytest.raises(NovaError, match="AcceleratorRequestOpFailed"):
        compute.client.get_arq_by_uuid(old["uuid"])
    assert [arq["uuid"] for arq in site.call("GET", "/accelerator_requests")["arqs"]] == new
    assert site.held()[old["uuid"]] == old["attach_handle_uuid"]
    # However often Placement is told, and whoever asks it.
    for _ in range(3):
        site.report_again()
        assert site.offered() == ONE_HELD
        assert compute.schedule(profile, models.new_uuid()) is None

    site.obey()
    assert_at_rest(site, {bound["uuid"]})
    (next_one,) = compute.boot(profile, models.new_uuid())
    assert next_one["attach_handle_uuid"] == old["attach_handle_uuid"]


# With the short time-out the conductor asks for the cleaning while the other step still hangs.
@pytest.mark.every_database
@pytest.mark.parametrize(("timeout", "attempts"), [(60, 1), (1, 3)])
def test_deletion_while_a_handle_is_prepared(
    site, compute, sink, profile, instance, caplog, timeout, attempts
) -> None:
    caplog.set_level("INFO", "cyborg.drivers.fake")
    site.conf.set_override("host_step_timeout", timeout, group="conductor")
    site.hang("prepare")
    (old,) = compute.request(profile, instance)
    # The agent may look at its devices meanwhile.
    begun = until(lambda: [text for text in caplog.messages if text.startswith("Fake prepare of ")])
    assert compute.client.get_arqs_for_instance(instance, True) == []

    compute.delete(instance)
    (new,) = compute.request(profile, instance)

    assert compute.client.get_arq_uuids_for_instance(instance) == [new]
    tried(site, old, attempts)
    assert site.offered() == ONE_HELD
    until(lambda: site.held().keys() == {old, new})

    site.obey()
    (bound,) = compute.wait(instance, [new])
    assert (bound["uuid"], bound["state"]) == (new, models.BOUND)
    assert_at_rest(site, {new})
    assert sink.events == {new: "completed"}
    of_old = begun[0].partition(" of ")[2]
    steps = [text.removesuffix(of_old) for text in caplog.messages if text.endswith(of_old)]
    # A step whose end nobody waited for may be asked for once more.
    assert [step for step, _ in itertools.groupby(steps)] == ["Fake prepare of ", "Fake clean of "]


def test_a_handle_that_could_not_be_prepared_is_cleaned_before_it_is_free(
    site: Site, compute: Compute, sink: NovaSink, profile: str, instance: str
) -> None:
    site.fail("prepare")
    site.hang("clean")

    (failed,) = compute.give_up(instance, compute.request(profile, instance))

    assert (failed["state"], failed["attach_handle_info"]) == (models.BIND_FAILED, {})
    assert sink.events == {failed["uuid"]: "failed"}
    assert site.offered() == ONE_HELD
    assert site.held().keys() == {failed["uuid"]}

    site.obey("clean")
    assert_at_rest(site, set())
    assert compute.client.get_arq_by_uuid(failed["uuid"])["state"] == models.BIND_FAILED
    # What Nova's conductor does after a failed bind.
    compute.client.delete_arqs_by_uuid([failed["uuid"]])
    assert site.call("GET", "/accelerator_requests")["arqs"] == []
