# SPDX-License-Identifier: Apache-2.0
"""What drivers keep is whole and the newest, whoever saves it at the same time."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
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


KILLED = """
import os, signal, sys
from cyborg.drivers import kept_facts
from cyborg.tests.contract import passes
kept = kept_facts.KeptFacts(passes.configured(sys.argv[1], [], "host-1"), "gpu_devices")
kept.set("layouts", "a", 1)
os.fsync = lambda _descriptor: os.kill(os.getpid(), signal.SIGKILL)
kept.save()
"""


def begun(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("*.new"))


def test_what_a_killed_writer_has_begun_is_removed(conf, tmp_path):
    text = f"[DEFAULT]\nstate_path = {tmp_path}\n"
    died = subprocess.run([sys.executable, "-c", KILLED, text], check=False)
    assert died.returncode == -signal.SIGKILL
    (left,) = begun(tmp_path / "facts")
    others = tmp_path / "facts/pci.abcdefgh.new"
    others.touch()

    for is_news in (True, False):
        left.touch()
        kept = kept_facts.KeptFacts(conf, "gpu_devices")
        if is_news:
            kept.set("layouts", "b", 1)
        kept.save()

        assert begun(tmp_path / "facts") == [others]


def test_what_another_writes_now_is_not_removed(conf, tmp_path, caplog, monkeypatch):
    """Such as ``discover`` beside the agent: the lock tells, whoever the other is."""
    slow, fast = (kept_facts.KeptFacts(conf, "gpu_devices") for _ in range(2))
    slow.set("layouts", "a", 1)
    fast.set("layouts", "b", 2)
    sync = os.fsync
    seen: list[list[pathlib.Path]] = []

    def let_the_other_save(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        fast.save()
        seen.append(begun(tmp_path / "facts"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", let_the_other_save)
    slow.save()

    assert [len(each) for each in seen] == [1]
    (file,) = (tmp_path / "facts").iterdir()
    assert json.loads(file.read_text()) == {"layouts": {"a": 1}}
    assert caplog.text == ""


def test_a_file_that_is_removed_before_its_writer_has_locked_it_is_begun_anew(
    conf, tmp_path, caplog, monkeypatch
):
    lock = fcntl.flock
    taken: list[pathlib.Path] = []

    def take_it_first(descriptor: int, how: int) -> None:
        if not taken:
            taken.extend(begun(tmp_path / "facts"))
            kept_facts._remove_leftovers(tmp_path / "facts/gpu_devices.json")
        lock(descriptor, how)

    kept = kept_facts.KeptFacts(conf, "gpu_devices")
    kept.save()
    kept.set("layouts", "a", 1)
    monkeypatch.setattr(fcntl, "flock", take_it_first)
    kept.save()

    assert len(taken) == 1
    assert kept_facts.KeptFacts(conf, "gpu_devices").get("layouts", "a") == 1
    assert begun(tmp_path / "facts") == []
    assert caplog.text == ""


def test_a_damaged_file_is_said_and_mended(conf, tmp_path):
    path = tmp_path / "facts/gpu_devices.json"
    path.parent.mkdir()
    for text in ("[", "[1]", "\ufffd"):
        path.write_text(text)
        kept = kept_facts.KeptFacts(conf, "gpu_devices")

        assert kept.get("layouts", "a") is None
        assert f"{path} is ignored" in (kept.problem or "")
        kept.save()

        assert kept.problem is None
        assert json.loads(path.read_text()) == {}


def test_what_cannot_be_read_is_not_taken_for_forgotten(conf, tmp_path):
    path = tmp_path / "facts/gpu_devices.json"
    path.parent.mkdir()
    path.symlink_to(path)
    kept = kept_facts.KeptFacts(conf, "gpu_devices")

    for ask in (lambda: kept.get("layouts", "a"), lambda: kept.set("layouts", "a", 1)):
        with pytest.raises(OSError, match=str(path)):
            ask()
    kept.save()

    assert path.is_symlink()
    path.unlink()
    path.write_text('{"layouts": {"a": 2}}')
    assert kept.get("layouts", "a") == 2


@pytest.mark.parametrize(
    ("comes", "is_kept"),
    [
        ("S1", True),
        ("S2", False),
        (None, True),
        ("0000", True),
        # While a guest has the card, only the serial of PCI may be there.
        ("00-80-ee-00-00-00-41-80", True),
    ],
)
def test_what_was_kept_of_another_card_is_forgotten(conf, comes, is_kept):
    facts = {"0000:41:00.0": "layouts", "0000:41:00": "words", "0000:41:00.0 10de 20b5": "product"}
    kept = kept_facts.KeptFacts(conf, "gpu_devices")
    kept.set("layouts", "0000:42:00.0", 2)
    kept.check("0000:41:00.0", "S1")
    for key, kind in facts.items():
        kept.set(kind, key, 1)
    kept.save()

    again = kept_facts.KeptFacts(conf, "gpu_devices")
    assert again.get("words", "0000:41:00") == 1
    again.check("0000:41:00.0", comes)

    assert {again.get(kind, key) for key, kind in facts.items()} == {1 if is_kept else None}
    assert again.get("layouts", "0000:42:00.0") == 2
