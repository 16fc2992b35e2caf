# SPDX-License-Identifier: Apache-2.0
"""Parts of a process that its tests from outside meet by chance only."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from cyborg import process


def test_no_thread_keeps_an_old_value_alive(tmp_path, monkeypatch) -> None:
    """A thread that asks for an option while the files are read again."""
    file, conf = tmp_path / "cyborg.conf", cfg.ConfigOpts()
    seen: list[float] = []

    def note(changed: cfg.ConfigOpts, _fresh: Any) -> None:
        seen.append(changed.conductor.poll_interval)

    def write(seconds: float) -> None:
        file.write_text(f"[conductor]\npoll_interval = {seconds}\n")

    write(3600)
    process.read_options(conf, ["--config-file", str(file)])
    conf.register_mutate_hook(note)
    read_files = conf._reload_config_files

    def read_slowly() -> Any:
        assert conf.conductor.poll_interval
        return read_files()

    monkeypatch.setattr(conf, "_reload_config_files", read_slowly)
    write(0.5)
    process._read_again(conf)
    assert seen[-1] == conf.conductor.poll_interval == 0.5
