# SPDX-License-Identifier: Apache-2.0
"""Shows the life cycle of one accelerator step by step; tools/quickstart.sh installs and runs it.

Cyborg and a private Placement run in one process, ``cyborg-standalone``. This program does what
Nova would do, with the ``openstack`` client and Placement's REST API.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
import uuid
import webbrowser
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

BIN = pathlib.Path(sys.executable).parent
HOST = "demo-host"
PROFILE = "demo"
#: One group: one FPGA of the fake driver.
GROUPS = [{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}]
#: Seconds to wait for a step; it takes one or two.
PATIENCE = 60.0

T = TypeVar("T")


class Failed(Exception):
    """What went wrong, as a sentence."""


def say(number: int, text: str) -> None:
    """Print the heading of a step."""
    print(f"\n{number}. {text}", flush=True)


def until(what: str, find: Callable[[], T | None]) -> T:
    """Call ``find`` until it returns a value; return that."""
    deadline = time.monotonic() + PATIENCE
    while (found := find()) is None:
        if time.monotonic() > deadline:
            raise Failed(f"{what} within {PATIENCE:.0f} seconds")
        time.sleep(0.1)
    return found


def as_typed(arguments: tuple[str, ...]) -> list[str]:
    """The command in lines that a terminal has room for; an option stays beside its value."""
    whole = f"$ openstack accelerator {shlex.join(arguments)}".replace(" -c ", " -c\0")
    lines = textwrap.wrap(whole, 72, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def environment() -> dict[str, str]:
    """Our environment without variables of other clouds, and without a proxy for this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    # cyborg-standalone reads options from the environment too.
    own = {"OS_AGENT__ENABLED_DRIVERS": "fake_driver"}
    return kept | own | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


class Service:
    """The running ``cyborg-standalone``."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._log = state_dir / "log"
        command = [BIN / "cyborg-standalone", "--port", "0", "--host", HOST]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--state-dir", state_dir],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
                # Ctrl-C is for this program, which then stops the service.
                process_group=0,
            )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        if not ready:
            raise Failed(f"cyborg-standalone did not start: {self._last_line()}")
        self.url = ready.split()[3].removesuffix("/v2")

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        return self._process.wait()

    def stop(self) -> int:
        """Stop it; return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def logged(self, *words: str) -> str | None:
        """The log message, from the first word on, of a line with all these words."""
        for line in self._log.read_text().splitlines():
            if all(word in line for word in words):
                return line[line.index(words[0]) :]
        return None

    def _last_line(self) -> str:
        self._process.wait(PATIENCE)
        return (self._log.read_text().strip().splitlines() or ["its log is empty"])[-1]

    def openstack(self, *arguments: str) -> dict[str, str]:
        """Run ``openstack accelerator …`` and print its output; return the fields of its table."""
        print("   " + " \\\n       ".join(as_typed(arguments)), flush=True)
        access = ["--os-auth-type", "none", "--os-endpoint", f"{self.url}/v2"]
        done = subprocess.run(
            [BIN / "openstack", *access, "accelerator", *arguments],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        for line in done.stdout.splitlines():
            print(f"   {line}", flush=True)
        if done.returncode != 0:
            raise Failed(f"openstack accelerator {arguments[0]} failed: {done.stderr.strip()}")
        cells = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")]
        return {row[1].strip(): row[2].strip() for row in cells if len(row) == 4}

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to Cyborg or Placement; return the decoded answer."""
        request = urllib.request.Request(self.url + path, method=method)
        if path.startswith("/placement"):
            request.add_header("X-Auth-Token", "admin")
            request.add_header("OpenStack-API-Version", "placement 1.36")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=PATIENCE) as answer:
                text = answer.read()
        except urllib.error.HTTPError as exc:
            raise Failed(f"{method} {path}: {exc.code} {exc.read().decode()}") from exc
        return json.loads(text) if text else None


@contextlib.contextmanager
def running() -> Iterator[Service]:
    """A running service with a temporary state directory."""
    with tempfile.TemporaryDirectory(prefix="cyborg-quickstart-") as folder:
        service = Service(pathlib.Path(folder))
        try:
            yield service
        finally:
            status = service.stop()
        if status != 0:
            raise Failed(f"cyborg-standalone ended with status {status}")


def candidates_query(groups: list[dict[str, str]]) -> str:
    """The query to Placement for the profile's groups: one numbered request group each."""
    parts = ["group_policy=none"]
    for number, group in enumerate(groups):
        suffix = f"_device_profile_{number}"
        resources = {k.split(":")[1]: v for k, v in group.items() if k.startswith("resources:")}
        traits = [
            "!" * (value == "forbidden") + key.split(":")[1]
            for key, value in group.items()
            if key.startswith("trait:")
        ]
        parts.append(f"resources{suffix}=" + ",".join(f"{k}:{v}" for k, v in resources.items()))
        parts += [f"required{suffix}=" + ",".join(traits)] if traits else []
    return "&".join(parts)


def find_candidate(service: Service, query: str) -> dict[str, Any] | None:
    """The first allocation candidate for the query, or None."""
    path = f"/placement/allocation_candidates?{query}"
    found = service.rest("GET", path)["allocation_requests"]
    return found[0] if found else None


def offered(service: Service, provider: str) -> str:
    """The provider's usage and inventory."""
    path = f"/placement/resource_providers/{provider}"
    inventory = service.rest("GET", f"{path}/inventories")["inventories"]["FPGA"]
    used = service.rest("GET", f"{path}/usages")["usages"]["FPGA"]
    return f"{used} of {inventory['total']} FPGAs in use, {inventory['reserved']} reserved"


def provider_of(candidate: dict[str, Any]) -> str:
    """The provider for the profile's only group."""
    (provider,) = candidate["mappings"]["_device_profile_0"]
    return str(provider)


def columns(*names: str) -> list[str]:
    """The client's options to show only these columns."""
    return [part for name in names for part in ("-c", name)]


def expect(what: str, *, seen: object, wanted: object) -> None:
    """Fail unless the two are equal."""
    if seen != wanted:
        raise Failed(f"{what}: {wanted!r} was expected, not {seen!r}")


def discover(service: Service) -> None:
    """Steps 1 and 2: a device, and a device profile for it."""
    say(1, "The agent has found a device: the fake driver's, an FPGA for 16 guests.")
    # The device appears with the agent's first report.
    until("no device", lambda: service.rest("GET", "/v2/devices")["devices"] or None)
    service.openstack("device", "list", *columns("hostname", "address", "type", "health"))
    say(2, "An operator creates a device profile: a name for what users may ask for.")
    group = ",".join(f"{key}={value}" for key, value in GROUPS[0].items())
    create = ("device", "profile", "create", PROFILE, "--group", group)
    service.openstack(*create, *columns("name", "groups"))


def allocate(service: Service, provider: str) -> None:
    """Step 3: a job has an accelerator, without Nova."""
    say(3, "A job asks for one. Nobody else gets it until the job gives it back.")
    create = ("allocation", "create", PROFILE, "--name", "job", "--wait")
    fields = service.openstack(*create, *columns("state", "hosts"))
    expect("the state", seen=fields.get("state"), wanted="Active")
    service.openstack("arq", "list", *columns("state", "device_profile_name", "attach_handle_info"))
    service.openstack("allocation", "delete", "job")
    until("the FPGA is not free", lambda: "0 of 16" in offered(service, provider) or None)


def request(service: Service) -> str:
    """Step 4: an accelerator request."""
    say(4, "A server needs one. Nova makes an accelerator request (ARQ) of the profile.")
    return service.openstack("arq", "create", PROFILE, *columns("uuid", "state"))["uuid"]


def bind(service: Service, candidate: dict[str, Any], arq: str, instance: str) -> None:
    """Steps 5 and 6: claim and bind; show the attach handle and the event for Nova."""
    provider = provider_of(candidate)
    say(5, "Nova claims the FPGA in Placement, and asks Cyborg to bind the request.")
    who = {"project_id": "demo", "user_id": "demo", "consumer_generation": None}
    service.rest("PUT", f"/placement/allocations/{instance}", candidate | who)
    print(f"   Placement: {offered(service, provider)}")
    shown = columns("state", "hostname", "instance_uuid")
    service.openstack("arq", "bind", arq, HOST, instance, provider, *shown)
    path = f"/v2/accelerator_requests/{arq}"
    until(
        "the request does not become Bound",
        lambda: service.rest("GET", path)["state"] == "Bound" or None,
    )
    say(6, "It is Bound. The attach handle is what this guest, and no other, is given.")
    shown = columns("state", "attach_handle_type", "attach_handle_info")
    fields = service.openstack("arq", "show", arq, *shown)
    expect("the state", seen=fields.get("state"), wanted="Bound")
    expect("the attach handle's type", seen=fields.get("attach_handle_type"), wanted="TEST_PCI")
    until("no event", lambda: service.logged("Event", instance, arq))
    print("   Nova would receive the event accelerator-request-bound now.")


def release(service: Service, provider: str, instance: str) -> None:
    """Step 7: delete the instance; everything is free again."""
    say(7, "The server is deleted, and with it its accelerator requests and its claim.")
    service.rest("DELETE", f"/v2/accelerator_requests?instance={instance}")
    service.rest("DELETE", f"/placement/allocations/{instance}")
    left = service.rest("GET", "/v2/accelerator_requests")["arqs"]
    expect("the accelerator requests", seen=left, wanted=[])
    text = offered(service, provider)
    expect("Placement", seen=text, wanted="0 of 16 FPGAs in use, 0 reserved")
    print(f"   Placement: {text}")


def live(service: Service) -> None:
    """Run all steps once."""
    instance = str(uuid.uuid4())
    discover(service)
    query = candidates_query(GROUPS)
    candidate = until("no allocation candidate", lambda: find_candidate(service, query))
    allocate(service, provider_of(candidate))
    bind(service, candidate, request(service), instance)
    release(service, provider_of(candidate), instance)


def has_desktop() -> bool:
    """Whether somebody sits before this terminal who would see a browser."""
    named = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(named) and sys.stdout.isatty()


def stay(service: Service) -> None:
    """Keep the service running, and print how to use it."""
    if has_desktop():
        webbrowser.open(service.url)
    print(
        f"\nThe service keeps running until Ctrl-C. Use it:\n"
        f"   The status page, for a browser: {service.url}\n"
        f"   {BIN}/openstack --os-auth-type none --os-endpoint {service.url}/v2 \\\n"
        f"       accelerator device list\n"
        f"   REST: {service.url}/v2, and Placement at {service.url}/placement with the header\n"
        f"       X-Auth-Token: admin\n"
        f"   Ctrl-C deletes its data. To keep data: {BIN}/cyborg-standalone --state-dir DIR",
        flush=True,
    )
    with contextlib.suppress(KeyboardInterrupt):
        status = service.wait()
        raise Failed(f"cyborg-standalone ended by itself, with status {status}")


def main() -> int:
    """Run the steps; return the exit status."""
    once = sys.argv[1:] == ["--once"]
    # Stop the service too if this program is terminated, or its terminal is closed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    try:
        with running() as service:
            live(service)
            if not once:
                stay(service)
    except KeyboardInterrupt:
        return 130
    except Failed as exc:
        print(f"quickstart: {exc}", file=sys.stderr)
        return 1
    except Exception as exc:  # noqa: BLE001 - errors are shown as one sentence
        print(f"quickstart: unexpected error: {exc!r}", file=sys.stderr)
        return 1
    if once:
        print("\nThat was one whole life cycle.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
