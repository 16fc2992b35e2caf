# SPDX-License-Identifier: Apache-2.0
"""What drivers keep is whole and the newest, whoever saves it at the same time."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

import pytest

from cyborg.drivers import kept_facts
from cyborg.tests.contract import passes

WRITERS, TIMES = 4, 25


@pytest.fixture
def conf(tmp_path: pathlib.Path) -> Any:
    return passes.configured(f"[DEFAULT]\nstate_path = {tmp_path}\n", [], "host-1")


@pytest.mark.parametrize("is_shared", [True, False])
def test_threads_that_save_at_once_disturb_nobody(conf, tmp_path, caplog, is_shared):
    """A pass, a layout and the reading of links each save in a thread of their own."""
    kept = kept_facts.KeptFacts(conf, "gpu_devices")
    ready = threading.Barrier(WRITERS)

    def write(name: str) -> None:
        own = kept if is_shared else kept_facts.KeptFacts(conf, "gpu_devices")
        ready.wait()
        for number in range(TIMES):
            own.set("layouts", name, number)
            own.save()

    threads = [threading.Thread(target=write, args=(str(each),)) for each in range(WRITERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert caplog.text == ""
    (file,) = (tmp_path / "facts").iterdir()
    written = json.loads(file.read_text())["layouts"]
    if is_shared:
        assert written == {str(each): TIMES - 1 for each in range(WRITERS)}
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_save_that_fails_leaves_nothing_and_is_made_up_for(conf, tmp_path, monkeypatch):
    kept = kept_facts.KeptFacts(conf, "gpu_devices")
    kept.set("layouts", "a", 1)
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", lambda _old, _new: (_ for _ in ()).throw(OSError()))
        kept.save()
    assert list((tmp_path / "facts").iterdir()) == []

    kept.save()

    assert kept_facts.KeptFacts(conf, "gpu_devices").get("layouts", "a") == 1
