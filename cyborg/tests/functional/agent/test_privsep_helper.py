# SPDX-License-Identifier: Apache-2.0
"""The program that sudo permits starts a helper of the agent and nothing else."""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from cyborg.cmd import privsep_helper
from cyborg.tests.simulated import preload

PATIENCE = 180
SOCKET = "/tmp/tmp_ab12/privsep.sock"
CONTEXT = "cyborg.drivers.privileged.context"
GOOD = ["--privsep_context", CONTEXT, "--privsep_sock_path", SOCKET]

ITSELF = "but the file or directory itself."

#: The program with another configuration file.
HELPER = (
    "import pathlib; from cyborg.cmd import privsep_helper; "
    "privsep_helper.CONFIG = pathlib.Path('{config}'); privsep_helper.main()"
)
#: Writes what nobody has signed.
WRITER = """
import sys
from oslo_config import cfg
from cyborg.drivers import privileged
cfg.CONF(["--config-file", sys.argv[1]], project="cyborg")
try:
    privileged.fpgaconf("0000:00:00.0", sys.argv[1], 1.0, sys.argv[1], 0.0, {})
except OSError as exc:
    print(exc.strerror)
"""


@pytest.fixture
def config(tmp_path: pathlib.Path) -> pathlib.Path:
    if os.geteuid() != 0:
        preload.missing("this test needs root")
    path = tmp_path / "cyborg.conf"
    helper = shlex.join([sys.executable, "-c", HELPER.format(config=path)]).replace("$", "$$")
    groups = ("cyborg_sys_admin", "cyborg_program")
    path.write_text("".join(f"[{group}]\nhelper_command = {helper}\n" for group in groups))
    tmp_path.chmod(0o755)
    path.chmod(0o644)
    return path


def refusal(config: pathlib.Path, *arguments: str) -> str:
    """What the program says, and starts no helper."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privsep_helper, "CONFIG", config)
        patch.setattr(sys, "argv", ["cyborg-privsep-helper", *arguments])
        patch.setattr(os, "execve", lambda *_: pytest.fail("a helper is started"))
        with pytest.raises(SystemExit) as ended:
            privsep_helper.main()
    return str(ended.value.code)


@pytest.mark.parametrize("name", ["cyborg-agent.conf", "cyborg.conf.d", "cyborg-agent.conf.d"])
def test_the_helper_reads_what_the_agent_reads(config: pathlib.Path, name: str) -> None:
    beside = config.with_name(name)
    if name.endswith(".d"):
        beside.mkdir(mode=0o755)
        beside /= "signed.conf"
    beside.write_text("[programming]\nrequire_signature = true\n")
    beside.chmod(0o644)
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(config)],
        env={**os.environ, "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "require_signature is true" in done.stdout, done.stderr
    beside.chmod(0o664)
    said = f"cyborg-privsep-helper: {beside} must belong to root, and nobody else may write it."
    assert refusal(config, *GOOD) == said


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        GOOD[:2],
        ["--config-file", "/tmp/evil.conf", *GOOD],
        [*GOOD, "--config-file", "/tmp/evil.conf"],
        [*GOOD[:3], "/tmp/x --config-file /tmp/evil.conf/privsep.sock"],
        [*GOOD[:3], "/tmp/../root/privsep.sock"],
        [*GOOD[:3], f"{SOCKET}\n"],
        ["--privsep_context", "os.system", *GOOD[2:]],
        ["--privsep_context", f"{CONTEXT}.x", *GOOD[2:]],
        [f"--privsep_context={CONTEXT}", *GOOD[2:]],
    ],
)
def test_no_other_arguments_are_taken(config: pathlib.Path, arguments: list[str]) -> None:
    said = "it takes only what oslo.privsep gives it for a context of Cyborg."
    assert refusal(config, *arguments) == f"cyborg-privsep-helper: {said}"


def test_the_configuration_is_roots_alone(config: pathlib.Path) -> None:
    for change, undo in (
        (lambda: config.chmod(0o664), lambda: config.chmod(0o644)),
        (lambda: config.parent.chmod(0o777), lambda: config.parent.chmod(0o755)),
        (lambda: os.chown(config, 65534, 0), lambda: os.chown(config, 0, 0)),
    ):
        change()
        assert "must belong to root" in refusal(config, *GOOD)
        undo()
    link = config.parent / "link"
    link.symlink_to(config.parent)
    assert "must be no link" in refusal(link / config.name, *GOOD)
    config.rename(config.with_name("elsewhere"))
    config.symlink_to("elsewhere")
    assert f"{config} must be no link, {ITSELF}" in refusal(config, *GOOD)
    config.unlink()
    assert "cannot be read: No such file" in refusal(config, *GOOD)


NOBODY = 65534
LOGGING = """
[loggers]
keys=root
[handlers]
keys=file
[formatters]
keys=
[logger_root]
level=DEBUG
handlers=file
[handler_file]
class=FileHandler
args=("{file}",)
"""


@pytest.mark.parametrize("option", ["log_dir", "log_file", "log_config_append"])
def test_nothing_is_written_where_the_agents_user_leads(
    config: pathlib.Path, option: str
) -> None:
    """The logs of the services are in a folder of that user."""
    of_root, logs = config.with_name("of_root"), config.with_name("log")
    of_root.mkdir(mode=0o700)
    logs.mkdir()
    os.chown(logs, NOBODY, NOBODY)
    # The file that oslo.log makes has the name of the program, which differs between Pythons.
    for name in ("daemon", "<frozen runpy>"):
        (logs / f"{name}.log").symlink_to(of_root / "made")
    appended = config.with_name("logging.conf")
    appended.write_text(LOGGING.format(file=logs / "daemon.log"))
    values = {
        "log_dir": logs,
        "log_file": logs / "daemon.log",
        "log_config_append": appended,
    }
    config.write_text(f"[DEFAULT]\n{option} = {values[option]}\n")

    command = [sys.executable, "-c", HELPER.format(config=config), *GOOD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert (done.returncode, list(of_root.iterdir())) == (1, []), done.stderr
