# SPDX-License-Identifier: Apache-2.0
"""A process with Nova in it: one call a line of standard input, one answer a line of output.

Nova keeps its options in the one global configuration, and so do other services that tests run, so
it gets a process of its own. A call is a JSON list of a name and arguments. Names are those of
Nova's client class and of the functions of its module, and besides ``configure`` and ``public``.
"""

from __future__ import annotations

import copy
import json
import sys
import types
from collections.abc import Callable
from typing import Any

import nova.conf
import nova.rpc
import oslo_messaging
from lxml import etree
from nova import context, exception, objects
from nova.accelerator import cyborg
from nova.compute import utils as compute_utils
from nova.scheduler import filters, host_manager, weights
from nova.virt.libvirt import config as libvirt_config
from nova.virt.libvirt import driver as libvirt_driver

from cyborg.nova import weigher

_FUNCTIONS = (
    cyborg.get_arq_pci_device_profile,
    cyborg.get_device_amount_of_dp_groups,
    cyborg.get_device_profile_group_requester_id,
)


#: As operators name them in the options weight_classes and available_filters.
WEIGHER = "cyborg.nova.weigher.AcceleratorWeigher"
FILTER = "cyborg.nova.weigher.AcceleratorFilter"


class Nova:
    """A user's request in Nova, and the client that Nova makes for it."""

    def configure(self, options: dict[str, dict[str, Any]], user: dict[str, str]) -> None:
        """Let the next calls be made for ``user``, with these groups of options in nova.conf."""
        for group, values in options.items():
            for name, value in values.items():
                nova.conf.CONF.set_override(name, value, group=group)
        self._weigher = weigher.AcceleratorWeigher()
        self._filter = weigher.AcceleratorFilter()
        self._context = context.RequestContext(**user)
        self._client = cyborg.get_client(self._context)

    def public(self) -> list[str]:
        """What the class offers to the rest of Nova."""
        return [name for name in dir(self._client) if not name.startswith("_")]

    def answer(self, name: str, arguments: list[Any]) -> Any:
        """Make one call."""
        known: dict[str, Callable[..., Any]] = {
            "configure": self.configure,
            "public": self.public,
            "get_device_profile_request_groups": self._profile_groups,
            "get_device_request_groups": self._request_groups,
            "get_arq_uuids_for_instance": self._uuids,
            "resolved": self._resolved,
            "guest_devices": _guest_devices,
            "weigh": self._weigh,
            "sort_claims": self._sort_claims,
            "listed_weighers": _listed_weighers,
            "announce_failure": _announce_failure,
            **{function.__name__: function for function in _FUNCTIONS},
        }
        return (known.get(name) or getattr(self._client, name))(*arguments)

    def _profile_groups(self, *arguments: Any) -> list[dict[str, Any]]:
        groups = cyborg.get_device_profile_request_groups(self._context, *arguments)
        return [_plain(group) for group in groups]

    def _request_groups(self, *arguments: Any) -> list[dict[str, Any]]:
        return [_plain(group) for group in self._client.get_device_request_groups(*arguments)]

    def _weigh(self, profile: str | None, nodes: list[str]) -> dict[str, float]:
        """The weights that nova-scheduler's own code gives to hosts for a flavor."""
        spec = _request_spec(profile)
        hosts = [host_manager.HostState(node, node, None) for node in nodes]
        handler = weights.HostWeightHandler()
        weighed = handler.get_weighed_objects([self._weigher], hosts, spec)
        return {each.obj.nodename: each.weight for each in weighed}

    def _sort_claims(
        self, profile: str, claims: dict[str, list[dict[str, Any]]], servers: list[str], by: str
    ) -> list[list[dict[str, Any]]]:
        """The claims of each host after nova-scheduler's own code has filtered and weighed it.

        For each server, whose request spec is the same one. ``by`` are the letters of what Nova
        is configured with: ``f`` for the filter, ``w`` for the weigher.
        """
        spec = _request_spec(profile)
        hosts = [host_manager.HostState(node, node, None) for node in claims]
        for server in servers:
            spec.instance_uuid = server
            for host in hosts:
                host.allocation_candidates = copy.deepcopy(claims[host.nodename])
            passing = [self._filter] if "f" in by else []
            found = filters.HostFilterHandler().get_filtered_objects(passing, hosts, spec)
            weighers = [self._weigher] if "w" in by else []
            weights.HostWeightHandler().get_weighed_objects(weighers, found, spec)
        return [host.allocation_candidates for host in hosts]

    def _uuids(self, instance: str) -> Any:
        return self._client.get_arq_uuids_for_instance(objects.Instance(uuid=instance))

    def _resolved(self, instance: str) -> list[Any]:
        """What ``only_resolved`` asked for in releases of Nova that left the choice to Cyborg."""
        query = {"instance": instance, "bind_state": "resolved"}
        answer, error = self._client._call_cyborg("get", self._client.ARQ_URL, params=query)
        return [answer.status_code, error, answer.json().get("arqs")]


def _request_spec(profile: str | None) -> objects.RequestSpec:
    specs = {"accel:device_profile": profile} if profile else {}
    return objects.RequestSpec(flavor=objects.Flavor(extra_specs=specs))


def _listed_weighers() -> list[str]:
    """What nova-scheduler loads where its options name this project's weigher and filter."""
    found = weights.HostWeightHandler().get_matching_classes([WEIGHER])
    found += filters.HostFilterHandler().get_matching_classes([FILTER])
    return [each.__name__ for each in found]


def _announce_failure(url: str, topic: str, profile: str | None, kind: str) -> None:
    """Announce as nova-conductor does that a server of a flavor could not be built."""
    conf = nova.conf.CONF
    # Registers the options.
    oslo_messaging.get_notification_transport(conf, url=url).cleanup()
    conf.set_override("transport_url", url)
    conf.set_override("notification_format", "versioned", group="notifications")
    conf.set_override("versioned_notifications_topics", [topic], group="notifications")
    conf.set_override("driver", ["messagingv2"], group="oslo_messaging_notifications")
    nova.rpc.set_defaults(control_exchange="nova")
    nova.rpc.init(conf)
    specs = {"accel:device_profile": profile} if profile else {}
    flavor = objects.Flavor(
        flavorid="f", memory_mb=64, vcpus=1, root_gb=1, ephemeral_gb=0, name="f", swap=0,
        rxtx_factor=1.0, vcpu_weight=0, disabled=False, is_public=True, extra_specs=specs,
        projects=[], description=None,
    )  # fmt: skip
    user = context.get_admin_context()
    uuid = "7a1c2b3d-0000-4000-8000-00000000beef"
    spec = objects.RequestSpec.from_components(
        user, uuid, {}, flavor, None, None, {}, None, None, project_id="p", user_id="u"
    )
    raised = getattr(exception, kind)
    # oslo.messaging calls so what another process has raised.
    remote = type(f"{kind}_Remote", (raised,), {})
    try:
        raise remote(reason="", op="", msg="")
    except exception.NovaException as exc:
        compute_utils.notify_about_compute_task_error(
            user, "build_instances", uuid, spec, "error", exc
        )
    nova.rpc.cleanup()


def _guest_devices(arqs: list[dict[str, Any]]) -> dict[str, Any]:
    """The devices that Nova's libvirt driver adds to a guest with these ARQs.

    ``xml`` holds the ``<devices>`` element of the domain. ``created`` holds what the driver has
    libvirt create for mediated devices: parent, type and uuid of each.
    """
    asked: list[tuple[str, str, str]] = []
    # Without a host: only what turns ARQs into devices is run.
    driver: Any = object.__new__(libvirt_driver.LibvirtDriver)
    driver._host = _NoNodeDevices()
    driver._warn_if_nova_managed = lambda _info: None
    driver._create_mdev = lambda parent, kind, uuid: asked.append((parent, kind, uuid))
    libvirt_driver.libvirt = types.SimpleNamespace(
        libvirtError=_NoNodeDevice, VIR_ERR_NO_NODE_DEVICE=_NoNodeDevice.code
    )
    guest = libvirt_config.LibvirtConfigGuest()
    by_pci = [arq for arq in arqs if arq["attach_handle_type"] == "PCI"]
    driver._guest_add_accel_pci_devices(guest, by_pci)
    driver._guest_add_mdevs(guest, driver._allocate_cyborg_mdevs(arqs))
    devices = etree.Element("devices")
    devices.extend(device.format_dom() for device in guest.devices)
    return {"xml": etree.tostring(devices).decode(), "created": asked}


class _NoNodeDevice(Exception):
    """libvirt's error for a node device that is not there."""

    code = 88

    def get_error_code(self) -> int:
        return self.code


class _NoNodeDevices:
    """libvirt on a host where nothing has been made for the guest yet."""

    def device_lookup_by_name(self, name: str) -> None:
        raise _NoNodeDevice(name)


def _plain(group: Any) -> dict[str, Any]:
    return {
        "requester_id": group.requester_id,
        "resources": group.resources,
        "required_traits": sorted(group.required_traits),
        "forbidden_traits": sorted(group.forbidden_traits),
    }


def main() -> None:
    """Answer until the input ends."""
    nova.conf.CONF([], project="nova", default_config_files=[], default_config_dirs=[])
    objects.register_all()
    one = Nova()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"value": one.answer(name, arguments)}
        except Exception as exc:  # noqa: BLE001 - the test is told
            answer = {"error": type(exc).__name__, "sentence": str(exc)}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
