# SPDX-License-Identifier: Apache-2.0
"""What the tests do with the cloud, and what they look at in it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
import uuid as uuidlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import settings
from keystoneauth1 import exceptions as ka_exc
from openstack import exceptions as sdk_exc
from records import BIN
from stack import CONDUCTORS, Stack

#: Name of a flavor and its device profile: the groups of the profile.
PROFILES: dict[str, list[dict[str, str]]] = {
    "accel-one": [{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}],
    "accel-two": [{"resources:FPGA": "2"}],
    # Groups of one profile may be served by one provider or by several.
    "accel-groups": [{"resources:FPGA": "1"}, {"resources:FPGA": "2"}],
    "accel-none-such": [{"resources:FPGA": "1", "trait:CUSTOM_NO_SUCH_TRAIT": "required"}],
}
#: A flavor without accelerators.
PLAIN = "plain"
#: What images of servers are called.
SNAPSHOT = "of-a-guest"
#: What images of bitstreams are called.
BITSTREAM = "bitstream"
#: Accelerators of the whole stack.
ACCELERATORS = 16
#: Seconds for anything that Nova does, on a busy machine.
PATIENCE = 300.0

Arq = dict[str, Any]
T = TypeVar("T")


class Scene:
    """The cloud as the administrator sees it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.cloud = stack.connect()
        self.compute = self.cloud.compute
        # Shelving and evacuation changed their manners over the years.
        self.compute.default_microversion = "2.90"
        self._image: str | None = None
        self.contradictions = ""

    def prepare(self) -> None:
        """Make the image, the profiles and the flavors, as far as they are not there."""
        self.prepare_image()
        profiles = {found.name for found in self.cloud.accelerator.device_profiles()}
        for name, groups in PROFILES.items():
            if name not in profiles:
                body = [{"name": name, "groups": groups}]
                assert self.cloud.accelerator.post("/device_profiles", json=body).status_code == 201
        for name in (PLAIN, *PROFILES):
            self._make_flavor(name, name if name in PROFILES else None)
        for host in settings.HOSTS:
            self.mend_host(host)
        self.clear()

    def prepare_image(self) -> None:
        """Make the image of all servers, if it is not there."""
        image = self.cloud.image.find_image("empty") or self.cloud.image.create_image(
            "empty", data=b"nothing", disk_format="raw", container_format="bare",
            visibility="public",
        )  # fmt: skip
        self._image = image.id

    def _make_flavor(self, name: str, profile: str | None) -> None:
        if self.compute.find_flavor(name) is None:
            flavor = self.compute.create_flavor(name=name, ram=64, vcpus=1, disk=1)
            if profile is not None:
                specs = {"accel:device_profile": profile}
                self.compute.create_flavor_extra_specs(flavor, specs)

    def offer(self, group: dict[str, str]) -> str:
        """A new flavor whose device profile has this group; its name."""
        name = f"accel-{uuidlib.uuid4()}"
        body = [{"name": name, "groups": [group]}]
        assert self.cloud.accelerator.post("/device_profiles", json=body).status_code == 201
        self._make_flavor(name, name)
        return name

    def upload_bitstream(self, function: str, content: str) -> str:
        """Upload a bitstream of the fake FPGA that says it is one function, and is another."""
        image = self.cloud.image.create_image(
            BITSTREAM, data=json.dumps({"function": content}).encode(), disk_format="raw",
            container_format="bare", visibility="public", **{"accel:function_id": function},
        )  # fmt: skip
        return str(image.id)

    # --- acts -------------------------------------------------------------------------------

    def create(self, flavor: str = "accel-one", *, name: str = "guest", **more: Any) -> Any:
        """Ask for a server, and return it as it is then."""
        found = self.compute.find_flavor(flavor, ignore_missing=False)
        more.setdefault("networks", "none")
        return self.compute.create_server(
            name=name, flavor_id=found.id, image_id=self._image, **more
        )

    def boot(self, flavor: str = "accel-one", **more: Any) -> Any:
        """A server that is active."""
        return self.until_status(self.create(flavor, **more), "ACTIVE")

    def boot_all(self, count: int, flavor: str = "accel-one") -> list[Any]:
        """So many servers asked for by one request, each settled."""
        name = f"many-{uuidlib.uuid4()}"
        self.create(flavor, name=name, min_count=count, max_count=count)
        found = [one for one in self.compute.servers(all_projects=True) if name in one.name]
        assert len(found) == count
        return [self.until_status(one, "ACTIVE", "ERROR") for one in found]

    def act(self, server: Any, action: str, status: str, arguments: Any = None) -> Any:
        """Have Nova do something to a server, and wait until it has."""
        self.ask(server, action, arguments)
        return self.until_status(server, status)

    def ask(self, server: Any, action: str, arguments: Any = None) -> None:
        """Have Nova do something to a server."""
        answer = self.compute.post(
            f"/servers/{server.id}/action", json={action: arguments}, microversion="2.90"
        )
        assert answer.status_code < 300, answer.text

    @contextlib.contextmanager
    def paused_conductors(self) -> Iterator[None]:
        """While nothing is decided."""
        for name in CONDUCTORS:
            self.stack.records.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            for name in CONDUCTORS:
                self.stack.records.signal(name, signal.SIGCONT)

    def fail_host(self, host: str) -> None:
        """Stop a compute service, and tell Nova that it is dead."""
        self.stack.records.stop(f"nova-compute-{host}")
        (service,) = self.compute.services(host=host, binary="nova-compute")
        self.compute.update_service_forced_down(service, forced=True)

    def mend_host(self, host: str) -> None:
        """Start a compute service again, and return when Nova takes it for alive."""
        self.stack.start(f"nova-compute-{host}")

        def accepted() -> bool | None:
            (service,) = self.compute.services(host=host, binary="nova-compute")
            try:
                self.compute.update_service_forced_down(service, forced=False)
            except sdk_exc.BadRequestException:
                # It has not cleaned up yet what was evacuated from it.
                return None
            return True

        def alive() -> bool | None:
            (service,) = self.compute.services(host=host, binary="nova-compute")
            return service.state == "up" or None

        self.until(f"the return of {host}", accepted)
        self.until(f"nova-compute of {host}", alive)

    def restart_compute(self, host: str) -> None:
        """Let a compute service read Placement anew, and return when it builds servers again."""
        name = f"nova-compute-{host}"
        self.stack.records.stop(name)
        (before,) = self.compute.services(host=host, binary="nova-compute")
        self.stack.start(name)

        def reports() -> bool | None:
            (service,) = self.compute.services(host=host, binary="nova-compute")
            return service.updated_at != before.updated_at or None

        self.until(f"a report of nova-compute of {host}", reports)

    def fail_spawns(self, count: int) -> None:
        """Have the next guests fail to start, on whichever hosts."""
        for number in range(count):
            (self.stack.faults / f"fail-{number}").touch()

    @contextlib.contextmanager
    def held_spawns(self) -> Iterator[None]:
        """Guests do not start within the block, but wait for its end."""
        (self.stack.faults / "hold").touch()
        try:
            yield
        finally:
            (self.stack.faults / "hold").unlink()

    def clear(self) -> None:
        """Delete every server and wait until they are gone; their images and faults as well."""
        for fault in self.stack.faults.iterdir():
            fault.unlink()
        for name in (SNAPSHOT, BITSTREAM):
            for image in self.cloud.image.images(name=name):
                self.cloud.image.delete_image(image)
        for server in self.compute.servers(all_projects=True):
            self.delete(server)

    def delete(self, server: Any) -> None:
        """Delete a server and wait until it is gone."""
        self.compute.delete_server(server, ignore_missing=True)
        self.until_gone(server)

    # --- looks ------------------------------------------------------------------------------

    def until(
        self,
        what: str,
        find: Callable[[], T | None],
        *,
        pause: float = 0.2,
        explain: Callable[[], str] = str,
    ) -> T:
        """Ask until there is an answer; ``explain`` says why there is none."""
        deadline = time.monotonic() + PATIENCE
        while (found := find()) is None:
            if time.monotonic() >= deadline:
                raise AssertionError(f"{what}: not in {PATIENCE:.0f} seconds. {explain()}")
            time.sleep(pause)
        return found

    def until_status(self, server: Any, *statuses: str) -> Any:
        """The server once it is in one of these states and nothing is being done to it.

        One that ends in ERROR unexpectedly fails the test at once.
        """

        def settled() -> Any:
            try:
                found = self.compute.get_server(server.id)
            except (ka_exc.ConnectionError, sdk_exc.HttpException) as exc:
                # Nova's API is restarting.
                if isinstance(exc, sdk_exc.HttpException) and (exc.status_code or 500) < 500:
                    raise
                return None
            if found.task_state is None and found.status in statuses:
                return found
            assert found.status != "ERROR" or "ERROR" in statuses, found.fault
            return None

        return self.until(f"server {server.name} {statuses}", settled)

    def fault(self, server: Any) -> str:
        """Why a server is in ERROR. Nova writes the state first, and then this."""

        def message() -> str | None:
            found = self.compute.get_server(server.id).fault
            return str(found["message"]) if found else None

        return self.until(f"fault of server {server.name}", message)

    def until_gone(self, server: Any) -> None:
        """Return when Nova has no such server."""

        def gone() -> bool | None:
            return self.compute.find_server(server.id, all_projects=True) is None or None

        self.until(f"end of server {server.name}", gone)

    def arqs(self, server: Any = None) -> list[Arq]:
        """The ARQs of a server, or all there are."""
        query = f"?instance={server.id}" if server is not None else ""
        answer = self.cloud.accelerator.get(f"/accelerator_requests{query}")
        found: list[Arq] = answer.json()["arqs"]
        return found

    def handles(self) -> list[dict[str, Any]]:
        """All attach handles."""
        answer = self.cloud.accelerator.get(
            "/attach_handles", headers={"OpenStack-API-Version": "accelerator latest"}
        )
        found: list[dict[str, Any]] = answer.json()["attach_handles"]
        return found

    def allocations(self, server: Any) -> dict[str, int]:
        """Accelerators of the server by provider uuid, as Placement counts them."""
        answer = self.cloud.placement.get(f"/allocations/{server.id}").json()["allocations"]
        return {
            uuid: found["resources"]["FPGA"]
            for uuid, found in answer.items()
            if "FPGA" in found["resources"]
        }

    def program_of(self, provider: str) -> dict[str, Any]:
        """What the deployable of a provider runs."""
        answer = self.cloud.accelerator.get(
            f"/deployables?rp_uuid={provider}", headers={"OpenStack-API-Version": "accelerator 2.4"}
        )
        (deployable,) = answer.json()["deployables"]
        program: dict[str, Any] = deployable["program"]
        return program

    def make_pool(self, function: str, *, free: int, max_devices: int) -> str:
        """Make a function pool; its uuid."""
        body = {"name": f"pool-{uuidlib.uuid4()}", "function_id": function}
        answer = self._pools(
            "POST", json=body | {"free": free, "max_devices": max_devices}
        )
        return str(answer.json()["uuid"])

    def pool(self, uuid: str) -> dict[str, Any]:
        """A function pool, with its counts."""
        found: dict[str, Any] = self._pools("GET", f"/{uuid}").json()
        return found

    def delete_pool(self, uuid: str) -> None:
        """Delete a function pool."""
        self._pools("DELETE", f"/{uuid}")

    def _pools(self, method: str, path: str = "", **more: Any) -> Any:
        return self.cloud.accelerator.request(
            f"/function_pools{path}", method, raise_exc=True,
            headers={"OpenStack-API-Version": "accelerator 2.4"}, **more,
        )  # fmt: skip

    def operations_of(self, image: str) -> list[dict[str, Any]]:
        """The operations that an image was to be written by."""
        answer = self.cloud.accelerator.get(
            "/operations", headers={"OpenStack-API-Version": "accelerator 2.4"}
        )
        listed: list[dict[str, Any]] = answer.json()["operations"]
        return [operation for operation in listed if operation["image_uuid"] == image]

    def providers(self) -> dict[str, str]:
        """Uuids of the accelerator providers and the host that each belongs to."""
        found = self.cloud.placement.get("/resource_providers").json()["resource_providers"]
        return {
            one["uuid"]: one["name"].partition("_FakeDevice")[0].removeprefix("upstream-")
            for one in found
            if "_FakeDevice" in one["name"]
        }

    def root_of(self, host: str) -> str:
        """The uuid of a host's root provider."""
        answer = self.cloud.placement.get(f"/resource_providers?name={host}").json()
        (found,) = answer["resource_providers"]
        return str(found["uuid"])

    def give_traits(self, provider: str, traits: Iterable[str]) -> list[str]:
        """Have an administrator give traits to a card; the uuids of its new attributes."""
        version = {"OpenStack-API-Version": "accelerator latest"}
        (deployable,) = self.cloud.accelerator.get(
            f"/deployables?rp_uuid={provider}", headers=version
        ).json()["deployables"]
        made = []
        for trait in traits:
            body = {"deployable_uuid": deployable["uuid"], "key": f"trait_{trait}", "value": trait}
            answer = self.cloud.accelerator.post(
                "/attributes", json=body, headers=version, raise_exc=True
            )
            made.append(str(answer.json()["uuid"]))
        return made

    def offered(self) -> int:
        """How many accelerators Placement offers, used ones among them."""
        total = 0
        for uuid in self.providers():
            path = f"/resource_providers/{uuid}/inventories/FPGA"
            inventory = self.cloud.placement.get(path).json()
            # A provider that was just made has none.
            total += inventory.get("total", 0) - inventory.get("reserved", 0)
        return total

    def check_bound(self, server: Any, count: int) -> list[Arq]:
        """The server's ARQs, which must be Bound where Nova has put it, one handle each."""
        server = self.compute.get_server(server.id)
        arqs = self.arqs(server)
        assert [arq["state"] for arq in arqs] == ["Bound"] * count
        assert {arq["hostname"] for arq in arqs} == {server.hypervisor_hostname}
        assert len({arq["attach_handle_uuid"] for arq in arqs}) == count
        hosts = self.providers()
        assert {hosts[arq["device_rp_uuid"]] for arq in arqs} == {server.compute_host}
        by_provider: dict[str, int] = {}
        for arq in arqs:
            by_provider[arq["device_rp_uuid"]] = by_provider.get(arq["device_rp_uuid"], 0) + 1
        assert self.allocations(server) == by_provider
        return arqs

    def check_no_handle_twice(self, servers: Iterable[Any]) -> None:
        """No two of the servers share an attach handle."""
        handles = [arq["attach_handle_uuid"] for server in servers for arq in self.arqs(server)]
        assert len(set(handles)) == len(handles)

    def check_at_rest(self) -> None:
        """No ARQ is left, every provider is free, and the database contradicts nobody."""
        self.until("the end of every ARQ", lambda: None if self.arqs() else True)
        self.until("free providers", lambda: None if self._in_use() else True)
        self.until("a sound state", self.is_sound, explain=lambda: self.contradictions)

    def _in_use(self) -> list[str]:
        return [
            uuid
            for uuid in self.providers()
            if self.cloud.placement.get(f"/resource_providers/{uuid}/usages").json()["usages"].get(
                "FPGA"
            )
        ]

    def is_sound(self) -> bool | None:
        """Whether ``cyborg-status check`` finds nothing; it says more in ``contradictions``."""
        config = self.stack.state / "etc" / "cyborg" / "cyborg.conf"
        command = [BIN / "cyborg-status", "--config-file", config, "check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.contradictions = done.stdout + done.stderr
        return done.returncode == 0 or None
