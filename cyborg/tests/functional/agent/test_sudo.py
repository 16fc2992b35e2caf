# SPDX-License-Identifier: Apache-2.0
"""The agent's user starts its helpers just as the page about hosts says: with sudo or without."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator

import pytest

from cyborg.tests.bare_machine import PAGES, REPOSITORY, Machine
from cyborg.tests.simulated import preload

pytestmark = pytest.mark.slow

PAGE = (PAGES / "admin" / "hosts.rst").read_text()
DROP_IN = (REPOSITORY / "etc" / "systemd" / "10-cyborg-agent-sudo.conf").read_text()
UNIT = (REPOSITORY / "etc" / "systemd" / "cyborg-agent.service").read_text()

#: What the agent does: one call to each of its helpers, of which the last runs a tool.
CLIENT = """
import pathlib
from oslo_config import cfg
from cyborg.drivers import permit_clock, privileged
cfg.CONF(["--config-file", "/etc/cyborg/cyborg.conf"], project="cyborg")
for call in (privileged.remove_mdev, privileged.nvme_sanitize_state):
    try:
        call("../../etc")
    except ValueError as exc:
        print(exc)
for name in ("bitstream", "lock"):
    pathlib.Path("/var/lib/cyborg", name).touch()
place, until = "/var/lib/cyborg/", permit_clock.clock() + 600
privileged.fpgaconf("0000:3b:00.0", place + "bitstream", 60, place + "lock", until, {})
print(pathlib.Path("/var/lib/cyborg/told").read_text(), end="")
try:
    privileged.fpgaconf("0000:3b:00.0", place + "bitstream", 1, place + "lock", until, {})
except OSError as exc:
    print(type(exc).__name__)
"""
REFUSED = "'../../etc' cannot be part of a path in sysfs\n"
CAP_DAC_OVERRIDE = 1 << 1

#: The machine of an operator who has followed the page, but for what the page has in blocks.
PREPARE = """
over() {{
    mkdir -p "$files$1/upper" "$files$1/work"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$files$1/upper,workdir=$files$1/work" "$1"
}}
files={files}
# The user of the agent may not read the home of root, where the programs of a test can be.
for folder in {closed}; do over "$folder"; chmod o+x "$folder"; done
over /usr/local/bin
over /usr/bin
getent passwd cyborg || useradd --system --home-dir /var/lib/cyborg cyborg
install --directory --owner cyborg --mode 750 /var/lib/cyborg
install --directory --mode 755 /etc/cyborg
cp {program} /usr/local/bin/cyborg-privsep-helper
cat >/usr/bin/fpgaconf <<'EOF'
#!/bin/sh
told=/var/lib/cyborg/told
[ -e $told ] && exec sleep 600
id -u >$told
grep ^Cap /proc/self/status >>$told
chmod o+r $told
EOF
chmod 755 /usr/bin/fpgaconf
"""


def example(after: str) -> str:
    """The block of the page that follows these words."""
    found = re.search(re.escape(after) + r"[\s\S]*?code-block:: \w+\n\n((?: {7}.*\n|\n)+)", PAGE)
    assert found
    return textwrap.dedent(found[1]).strip()


def closed() -> list[str]:
    """The folders on the way to the programs that other users cannot enter."""
    used = [pathlib.Path(sys.executable), pathlib.Path(sys.executable).resolve(), REPOSITORY]
    above = {folder for path in used for folder in path.parents}
    return sorted(str(folder) for folder in above if not folder.stat().st_mode & 0o1)


@pytest.fixture
def sudoer(tmp_path: pathlib.Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        preload.missing("this test needs root")
    if shutil.which("sudo") is None:
        preload.missing("sudo is not installed; run: apt-get install sudo")
    made = Machine(tmp_path / "machine", {}, {})
    program = pathlib.Path(sys.executable).with_name("cyborg-privsep-helper")
    files = tmp_path / "machine" / "files"
    made.run(PREPARE.format(files=files, closed=" ".join(closed()), program=program))
    # Of a host's own rules and options none are.
    made.run("rm -rf /etc/sudoers.d/*")
    yield made
    made.stop()


def capabilities(option: str, settings: str) -> str:
    """What the last line of that option names, as setpriv calls it."""
    names = re.findall(rf"^{option}=(.*)$", settings, re.MULTILINE)[-1].split()
    return ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names)])


def as_the_unit(settings: str, command: str) -> str:
    """Run a command as systemd would with these lines of a unit: their last ones count."""
    limits = capabilities("CapabilityBoundingSet", settings)
    given = capabilities("AmbientCapabilities", settings)
    nothing_new = re.findall(r"^NoNewPrivileges=(\w+)$", settings, re.MULTILINE)[-1] == "yes"
    options = f"--reuid cyborg --regid cyborg --clear-groups --bounding-set={limits}"
    options += f" --inh-caps={given} --ambient-caps={given}"
    options += " --no-new-privs" if nothing_new else ""
    return f"cd / && setpriv {options} {command}"


def configuration() -> str:
    """What the page says for one group, for the three of which it says so."""
    line = example("and in ``cyborg.conf``, also for").splitlines()[-1]
    groups = ("cyborg_sys_admin", "cyborg_nvme", "cyborg_program")
    return "\n".join(f"[{group}]\n{line}" for group in groups)


def test_every_helper_is_started_as_the_page_says_and_sudo_permits_nothing_else(
    sudoer: Machine,
) -> None:
    line = example("refuses every other argument.")
    sudoer.run(f"cat >/etc/sudoers.d/cyborg <<'EOF'\n{line}\nEOF\nchmod 440 /etc/sudoers.d/cyborg")
    sudoer.run(f"cat >/etc/cyborg/cyborg.conf <<'EOF'\n{configuration()}\nEOF")
    command = f"{sys.executable} -c '{CLIENT}'"
    told = sudoer.run(as_the_unit(DROP_IN, command))
    *helpers, user, inherited, permitted, effective, bounding, ambient, second = told.splitlines()
    assert helpers == [REFUSED.strip()] * 2
    # A tool that root starts would have all of the kernel's.
    assert user == "0"
    for line, value in (
        (inherited, 0),
        (permitted, CAP_DAC_OVERRIDE),
        (effective, CAP_DAC_OVERRIDE),
        (bounding, CAP_DAC_OVERRIDE),
        (ambient, 0),
    ):
        assert int(line.partition(":")[2], 16) == value
    # One that hangs is ended.
    assert second == "TimeoutError"

    # In the unit as it is, sudo cannot become root. A thread logs its words, sometimes too late, so
    # sudo is asked itself as well.
    with pytest.raises(AssertionError, match="FailedToDropPrivileges"):
        sudoer.run(as_the_unit(UNIT, command))
    with pytest.raises(AssertionError, match="prevents sudo from running as root"):
        sudoer.run(as_the_unit(UNIT, "sudo --non-interactive true"))
    # And nothing else is permitted.
    with pytest.raises(AssertionError, match="a password is required"):
        sudoer.run(as_the_unit(DROP_IN, "sudo -n /usr/bin/id"))
    helper = "sudo -n /usr/local/bin/cyborg-privsep-helper --config-file /tmp/evil.conf"
    with pytest.raises(AssertionError, match="it takes only what"):
        sudoer.run(as_the_unit(DROP_IN, helper))


def test_without_sudo_a_capability_of_the_unit_is_enough(sudoer: Machine) -> None:
    line = example("AmbientCapabilities=CAP_DAC_OVERRIDE\n\n    and in")
    folder = pathlib.Path(sys.executable).parent
    here = line.replace("= privsep-helper", f"= {folder}/privsep-helper")
    here += "\n" + here.replace("cyborg_sys_admin", "cyborg_nvme")
    sudoer.run(f"cat >/etc/cyborg/cyborg.conf <<'EOF'\n{here}\nEOF")
    client, _, _of_a_tool = CLIENT.partition('for name in ("bitstream"')
    for_sysfs = client.replace(", privileged.nvme_sanitize_state)", ",)")
    assert sudoer.run(as_the_unit(UNIT, f"{sys.executable} -c '{for_sysfs}'")) == REFUSED

    # The helper that erases has one capability more, which the unit must have then.
    with pytest.raises(AssertionError, match="FailedToDropPrivileges"):
        sudoer.run(as_the_unit(UNIT, f"{sys.executable} -c '{client}'"))
    more = UNIT.replace("=CAP_DAC_OVERRIDE", "=CAP_DAC_OVERRIDE CAP_SYS_ADMIN")
    assert sudoer.run(as_the_unit(more, f"{sys.executable} -c '{client}'")) == REFUSED * 2
