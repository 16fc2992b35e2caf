# SPDX-License-Identifier: Apache-2.0
"""A machine to install on: its files are this one's, and what is written to them is lost.

It is a mount namespace in which overlays lie above the folders that an installation writes to.
There is no init system in it: ``data/tools/systemctl`` starts what units say. Needs root.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import shlex
import signal
import subprocess
import textwrap
from collections.abc import Mapping

DATA = pathlib.Path(__file__).with_name("data")
REPOSITORY = pathlib.Path(__file__).parents[2]
PAGES = REPOSITORY / "doc" / "source"

#: The folders that an installation writes to.
_WRITTEN = ("/etc", "/opt", "/run", "/var/lib", "/var/log", str(REPOSITORY))

#: Above a folder lies one of the machine's own; $1 is where those are, and $2 what /opt/cyborg has.
_MOUNT = r"""
set -e
overlay() {
    mkdir -p "$3/upper" "$3/work" "$1"
    mount -t overlay overlay -o "lowerdir=$2,upperdir=$3/upper,workdir=$3/work" "$1"
}
mount -t tmpfs tmpfs "$1"
for folder in "${@:3}"; do
    overlay "$folder" "$folder" "$1$folder"
done
# What this machine has of Cyborg is not there.
rm -rf /etc/cyborg /opt/cyborg /var/lib/cyborg /var/log/cyborg
[ -z "$2" ] || overlay /opt/cyborg "$2" "$1/given"
echo ready
exec sleep infinity
"""

#: Commands that install the libraries of the project, without the project.
_REQUIRED = """
python3 -m venv /opt/cyborg
/opt/cyborg/bin/pip wheel --no-deps --wheel-dir /opt/project .
/opt/cyborg/bin/pip install /opt/project/*.whl
/opt/cyborg/bin/pip uninstall --yes openstack-cyborg
rm /opt/cyborg/bin/python* /opt/cyborg/pyvenv.cfg
"""

_BLOCK = re.compile(r"^\.\. code-block:: bash\n\n((?:   .*\n|\n)+)", re.MULTILINE)
_SECTION = re.compile(r"^(?<!=\n)(\w.*)\n=+\n", re.MULTILINE)
_NAMED = re.compile(r"\b([A-Z_]+)=")


def sections(page: str) -> dict[str, list[str]]:
    """The blocks of commands of each section of a page, such as ``install/verify``."""
    _before, *parts = _SECTION.split((PAGES / f"{page}.rst").read_text())
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    return {
        title: [textwrap.dedent(block) for block in _BLOCK.findall(text)]
        for title, text in texts.items()
    }


def required(folder: pathlib.Path) -> pathlib.Path:
    """The folder ``/opt/cyborg`` with the libraries that the project requires, and no more.

    It is no environment: whoever follows a page makes that.
    To install that takes most of the time of an installation: the machines of a run share one.
    """
    made, new = folder / "required", folder / "required.new"
    with (folder / "required.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            first = Machine(folder / "first", {}, {})
            try:
                first.run(f"{_REQUIRED}cp --archive /opt/cyborg {new}")
            finally:
                first.stop()
            new.rename(made)
    return made


class Machine:
    """One machine; ``programs`` are commands of its own, by name, as shell scripts.

    Its ``/opt/cyborg`` begins as ``given``, if it is not None.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        programs: Mapping[str, str],
        variables: Mapping[str, str],
        given: pathlib.Path | None = None,
    ) -> None:
        self._folder = folder
        for name in ("bin", "files", "pids", "logs"):
            (folder / name).mkdir(parents=True)
        (folder / "bin" / "systemctl").symlink_to(DATA / "tools" / "systemctl")
        for name, script in programs.items():
            program = folder / "bin" / name
            program.write_text(f"#!/usr/bin/env bash\n{script}\n")
            program.chmod(0o755)
        #: What the shell of the installation has, across pages.
        self._shell = folder / "shell"
        own = {"SYSTEMCTL_PIDS": folder / "pids", "SYSTEMCTL_LOGS": folder / "logs"}
        lines = [f"export {name}='{value}'" for name, value in {**own, **variables}.items()]
        self._shell.write_text("\n".join([*lines, f'export PATH="{folder}/bin:$PATH"\n']))
        command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", _MOUNT, "mount"]
        command += [str(folder / "files"), str(given or ""), *_WRITTEN]
        self._anchor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._anchor.stdout is not None
        assert self._anchor.stdout.readline() == "ready\n"

    def follow(self, page: str, different: Mapping[str, str], *only: str) -> str:
        """Run what a page says, in its order; the variables ``different`` are set as told there.

        With ``only`` just these sections of it. Returns the output of the last block.
        """
        found = sections(page)
        output = ""
        for title in only or found:
            for block in found[title]:
                named = set(_NAMED.findall(block)) if block.startswith("export ") else set()
                changed = {name: different[name] for name in sorted(named & different.keys())}
                mine = [f"export {name}='{value}'" for name, value in changed.items()]
                output = self.run("\n".join([block, *mine]))
        return output

    def run(self, script: str) -> str:
        """Run commands in the shell of the installation, each of which must do well."""
        file = self._folder / "script"
        file.write_text(
            f"set -eu\ncd {REPOSITORY}\n. {self._shell}\nset -x\n{script}\n"
            f"{{ set +x; }} 2>/dev/null\nexport -p > {self._shell}\n"
        )
        done = subprocess.run(
            ["nsenter", f"--mount=/proc/{self._anchor.pid}/ns/mnt", "bash", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
            env=self._bare(),
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def begin(self, name: str, script: str) -> None:
        """Run commands that do not end, as a service of this name."""
        begun = f"setsid bash -euc {shlex.quote(script)} >$SYSTEMCTL_LOGS/{name} 2>&1 &"
        self.run(f"{begun}\necho $! >$SYSTEMCTL_PIDS/{name}")

    @staticmethod
    def _bare() -> dict[str, str]:
        """The environment of a login, without what tests and virtual environments have set."""
        path = os.environ["PATH"].split(os.pathsep)
        outside = [part for part in path if ".tox" not in part and "venv" not in part]
        kept = {key: os.environ[key] for key in os.environ if key.startswith(("PIP_", "HOME"))}
        # Most of what is installed is never imported: each process compiles what it needs.
        return {
            "PIP_NO_COMPILE": "1",
            **kept,
            "PATH": os.pathsep.join(outside),
            "LC_ALL": "C.UTF-8",
        }

    def pids(self) -> dict[str, int]:
        """The process of each service that was started."""
        return {file.name: int(file.read_text()) for file in (self._folder / "pids").iterdir()}

    def logs(self) -> str:
        """What the services have said."""
        found = sorted((self._folder / "logs").iterdir())
        return "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in found)

    def stop(self) -> None:
        """End its services and itself."""
        for pid in self.pids().values():
            _end(pid)
        self._anchor.kill()
        self._anchor.wait()
        assert self._anchor.stdout is not None
        self._anchor.stdout.close()


def _end(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

