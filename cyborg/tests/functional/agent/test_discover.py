# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent discover`` as an operator runs it: on a host, with a file, and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from oslo_config import cfg
from oslo_privsep import priv_context

from cyborg import conf as conf_options
from cyborg.agent import discovery, discovery_preview, not_offered
from cyborg.cmd import agent
from cyborg.drivers import pci, privileged, registry
from cyborg.drivers.pci import product_names
from cyborg.tests.contract import passes
from cyborg.tests.found_cards import in_one_group

Discover = Callable[..., subprocess.CompletedProcess[str]]

GPU = "host-1_0000:09:00.0"
QAT = [f"host-1_0000:11:01.{number}" for number in range(2)]
ABSENT = "No driver of this name is installed"
SPEC = {"cards": ["t4", {"card": "qat-4xxx", "vfs": 2}]}


@pytest.fixture
def host(simulate) -> Any:
    return simulate(SPEC)


def in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    privileged.watching.set_client_mode(False)
    out, err = io.StringIO(), io.StringIO()
    conf = cfg.ConfigOpts()
    conf.register_opts(priv_context.OPTS, group="cyborg_watch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cfg, "CONF", conf)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = agent.main(list(arguments))
            except SystemExit as exc:
                status = int(exc.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


@pytest.fixture
def configured(tmp_path: pathlib.Path) -> Callable[..., list[str]]:
    """The arguments that name a file with these drivers and lines."""

    def write(drivers: str, more: str = "") -> list[str]:
        config = tmp_path / "cyborg.conf"
        # The log would be the agent's, of which this user need not be the owner.
        config.write_text(
            f"[DEFAULT]\nhost = host-1\nlog_file = {tmp_path}/absent/agent.log\n"
            f"[agent]\nenabled_drivers = {drivers}\nresource_provider_name = host-1.example\n"
            f"{more}"
        )
        return ["--config-file", str(config)]

    return write


@pytest.fixture
def discover(host: Any, configured: Callable[..., list[str]]) -> Discover:
    """Run the command with these lines in the agent's section of its file."""

    def run(
        *arguments: str, drivers: str = "nvidia_gpu_driver,intel_qat_driver", more: str = ""
    ) -> Any:
        return host.call(in_process, *configured(drivers, more), "discover", *arguments)

    return run


def previewed(drivers: list[str], names: str) -> dict[str, Any]:
    """A preview, as JSON, where the list of product names is at that path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_names, "PATHS", (pathlib.Path(names),))
        made = discovery_preview.make(passes.configured("", drivers, "host-1"))
    answer: dict[str, Any] = json.loads(discovery_preview.as_json(made))
    return answer


def without_accelerators(simulated):
    """A file is where the folder of accelerators was."""
    accelerators = pathlib.Path(simulated.files.path("class/accel"))
    shutil.rmtree(accelerators)
    accelerators.write_text("")


@pytest.mark.parametrize("broken", ["names", "accelerators"])
def test_the_list_is_whole_whatever_cannot_be_read(simulate, tmp_path, broken):
    simulated = simulate({"cards": ["t4", "mi210", "ai100"]})
    (tmp_path / "pci.ids").mkdir()
    names = str(tmp_path / "pci.ids") if broken == "names" else "/dev/null"
    if broken == "accelerators":
        without_accelerators(simulated)

    preview = simulated.call(previewed, ["nvidia_gpu_driver", "accel_driver"], names)

    listed = {each["address"] for each in preview["not_offered"]}
    assert simulated.card("mi210") in listed
    assert "nvidia_gpu_driver" in {each["driver"] for each in preview["devices"]}
    if broken == "accelerators":
        assert simulated.card("ai100") in listed
        assert "/sys/class/accel" in preview["errors"]["accel_driver"]


def previewed_with(text: str) -> list[str]:
    """The drivers of a preview with these options, after all that it began has ended."""
    privileged.programming.set_client_mode(False)
    made = discovery_preview.make(passes.configured(text, ["nvidia_gpu_driver"], "host-1"))
    for each in set(threading.enumerate()) - {threading.current_thread()}:
        each.join(10)
    return [*made.findings.devices]


def test_what_the_agent_keeps_is_not_begun_by_another_user(simulate, tmp_path):
    """Root may look before the agent's first start: the agent could not use a folder of root's."""
    simulated = simulate({"cards": [{"card": "h100", "count": 2}, {"card": "h100", "vfs": 2}]})
    state = tmp_path / "state"
    text = (
        f"[DEFAULT]\nstate_path = {state}\n[metrics]\nport = 9100\n[gpu_devices]\n"
        "read_topology = true\nread_sensors = true\nenabled_vgpu_types = 1137\n"
    )

    assert simulated.call(previewed_with, text) == ["nvidia_gpu_driver"]

    assert not state.exists()


def by_name(text: str) -> dict[str, dict[str, Any]]:
    devices = json.loads(text)["devices"]
    return {each["name"]: each for device in devices for each in device["providers"]}


def test_what_would_be_reported_is_shown_and_nothing_is_written(simulate_live, configured):
    host = simulate_live(SPEC)
    command = [sys.executable, "-m", "cyborg.cmd.agent"]
    named = configured("nvidia_gpu_driver,intel_qat_driver")

    done = host.run(*command, *named, "discover", "--format", "json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["host"], document["node"]) == ("host-1", "host-1.example")
    assert document["errors"] == {}
    providers = by_name(done.stdout)
    assert sorted(providers) == sorted([GPU, *QAT])
    assert providers[GPU]["inventory"] == {"PGPU": {"total": 1, "reserved": 0}}
    assert "CUSTOM_NVIDIA_1EB8" in providers[GPU]["traits"]
    (handle,) = providers[GPU]["attach_handles"]
    assert handle == {"attach_type": "PCI", "attach_info": pci.split("0000:09:00.0")}
    assert host.writes() == []


def test_people_get_a_table(discover):
    done = discover(drivers="nvidia_gpu_driver,fake_driver")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Host host-1, node host-1.example"
    assert lines[2].split() == ["DRIVER", "DEVICE", "PROVIDER", "INVENTORY", "TRAITS", "HANDLES"]
    assert any(GPU in line and "PGPU 1" in line for line in lines)
    assert any("host-1_FakeDevice" in line and "FPGA 16" in line for line in lines)
    assert "and 13 more" in [line.strip() for line in lines]


def test_people_see_what_programmable_devices_run(discover, tmp_path):
    state = tmp_path / "loaded"
    state.mkdir()
    options = f"[fake_driver]\nprogram_mode = single-program\nstate_dir = {state}\n"

    for shown in ("no function", "aes-128"):
        if shown == "aes-128":
            (state / "host-1_FakeDevice.function").write_text(shown)
        done = discover(drivers="fake_driver", more=options)

        assert done.returncode == 0, done.stderr
        header, first, second = done.stdout.splitlines()[2:5]
        place = header.index("PROGRAM")
        assert first[place:].startswith("single-program")
        assert second[place:].startswith(shown)


def test_what_ails_would_be_reserved_and_a_driver_that_fails_hides_no_other(host, discover):
    host.degrade(host.card("t4"), width=4)

    done = discover("--format", "json", drivers="unheard_of,nvidia_gpu_driver")

    assert done.returncode == 1
    (told,) = json.loads(done.stdout)["errors"].items()
    assert (told[0], told[1].partition(";")[0]) == ("unheard_of", ABSENT)
    assert "nvidia_gpu_driver" in told[1]
    assert by_name(done.stdout)[GPU]["inventory"] == {"PGPU": {"total": 1, "reserved": 1}}

    done = discover(drivers="unheard_of,nvidia_gpu_driver")

    assert done.returncode == 1
    assert f"Driver unheard_of: {ABSENT}" in done.stdout
    assert "Device PCI 0000:09:00.0 is unhealthy: " in done.stdout


def test_drivers_are_named_that_are_not_enabled(discover):
    named = ["--driver", "amd_gpu_driver", "--driver", "intel_fpga_driver"]

    done = discover(*named, drivers="unheard_of")

    assert done.returncode == 0, done.stderr
    assert "No driver found a device.\n" in done.stdout


def left_out(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    found = json.loads(done.stdout)["not_offered"]
    return {each["address"]: (each["reason"], each["remedy"]) for each in found}


def reported(arguments: list[str]) -> tuple[int, list[str]]:
    """What an agent says, who asks no driver that is not enabled: how many, and the lines."""
    conf = cfg.ConfigOpts()
    conf_options.register(conf)
    conf(arguments)
    loaded = registry.load(conf)
    findings = discovery.Discovery("host-1", loaded.drivers, timeout=30).run()
    assert findings.functions is not None
    left_out = not_offered.find(findings.functions, findings, loaded.drivers)
    return len(left_out), not_offered.lines(left_out, 50)


def test_cards_that_nobody_offers_are_listed_with_reason_and_remedy(simulate, configured):
    names = ["console", "a100", "t4", "amd", "unknown", "broken", "excluded", "listed"]
    names.append("ascend310")
    sound = {"id": "10de:10f0", "subsystem": "10de:12a2", "class": "040300"}
    cards = [
        "console",
        "a100",
        {"card": "t4", "mdev": None, "functions": [{**sound, "driver": "snd_hda_intel"}]},
        {"card": "mi210", "name": "amd", "vfs": 1},
        {"card": "ascend310", "name": "unknown", "id": "10ee:401e", "class": "070001"},
        "ascend310",
        {"card": "qat-c62x", "name": "broken"},
        {"card": "t4", "name": "excluded"},
        {"card": "qat-c62x", "name": "listed", "vfs": 3},
    ]
    host = simulate({"cards": cards})
    at = {name: host.card(name) for name in names}
    host.files.put(f"{host.path(at['broken'])}/uevent", "")
    part = host.vfs(at["listed"])[1]
    in_one_group(host, at["t4"], f"{at['t4'][:-1]}1")
    named = configured(
        "nvidia_gpu_driver,intel_qat_driver,pci_driver",
        "[gpu_devices]\nenabled_vgpu_types = nvidia-474\n"
        f'device_spec = {{"address": "{at["excluded"]}", "exclude": true}}\n'
        "[intel_qat_driver]\n"
        f'device_spec = {{"address": "{part}", "exclude": true}}\n',
    )

    done = host.call(in_process, *named, "discover", "--json")

    found = left_out(done)
    # Of a card that is offered, only the part with a reason of its own.
    assert found.pop(part) == (
        "intel_qat_driver: [intel_qat_driver] device_spec excludes it",
        "[intel_qat_driver] device_spec",
    )
    assert found.keys() == {at[name] for name in names if name != "listed"}
    reasons = {name: found[at[name]] for name in names if name != "listed"}
    assert "booted with" in reasons["console"][0]
    assert "no virtual functions yet" in reasons["a100"][0]
    assert reasons["a100"][1] == "[vgpu_<type>] device_addresses"
    assert "IOMMU group" in reasons["t4"][0]
    assert "vfio-pci" in reasons["t4"][1]
    assert reasons["amd"] == (
        "no enabled driver claims it, and amd_gpu_driver would",
        "[agent] enabled_drivers = amd_gpu_driver",
    )
    assert reasons["ascend310"] == (
        "no enabled driver claims it, and huawei_ascend_driver or accel_driver would",
        "[agent] enabled_drivers = huawei_ascend_driver",
    )
    assert reasons["unknown"][0] == "no driver claims it"
    assert "[pci] device_spec" in reasons["unknown"][1]
    assert "uevent cannot be read" in reasons["broken"][0]
    assert reasons["excluded"] == (
        "nvidia_gpu_driver: [gpu_devices] device_spec excludes it",
        "[gpu_devices] device_spec",
    )
    errors = json.loads(done.stdout)["errors"]
    assert errors["pci_driver"] == "[pci] device_spec is not set, so the driver reports nothing"
    # What the drivers log is said once, and not with times and traces.
    assert f"PCI device {at['t4']} is not offered: the host's driver" in done.stderr

    counted, lines = host.call(reported, named)
    assert counted == len(found) + 1
    said = "\n".join(lines)
    assert "[gpu_devices] device_spec excludes it" in said
    assert f"{at['amd']} 1002:740f" in said
    assert "no enabled driver claims it (see cyborg-agent discover on the host)" in said

    table = host.call(in_process, *named, "discover").stdout
    assert f"  {at['amd']} 1002:740f" in table
    assert "(see [agent] enabled_drivers = amd_gpu_driver)" in table


def test_a_host_on_which_no_driver_is_enabled_says_what_there_is(discover):
    done = discover("--json", drivers="")

    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert "[agent] enabled_drivers is not set" in document["errors"]["agent"]
    assert "installed drivers: accel_driver, amd_gpu_driver" in document["errors"]["agent"]
    lines = discover(drivers="").stdout.splitlines()
    assert any(line.startswith("[agent] enabled_drivers is not set") for line in lines)
    assert {each["remedy"] for each in document["not_offered"]} == {
        "[agent] enabled_drivers = nvidia_gpu_driver",
        "[agent] enabled_drivers = intel_qat_driver",
    }


def test_what_a_driver_raised_is_traced_with_debug(simulate, configured):
    simulated = simulate({"cards": ["ai100"]})
    without_accelerators(simulated)

    for options in ([], ["--debug"]):
        done = simulated.call(in_process, *configured("accel_driver"), *options, "discover")

        assert done.returncode == 1
        assert ("Traceback" in done.stderr) is bool(options)


def test_an_agent_without_a_broker_says_so_and_ends(configured):
    done = in_process(*configured("fake_driver"), "--log-file", "")

    assert done.returncode == 1
    assert "[DEFAULT] transport_url is not set" in done.stderr
    assert "Configuration files read: " in done.stderr


#: Entries of nova.conf, and the functions that are then given out twice.
LISTED: list[tuple[list[dict[str, str]], list[str]]] = [
    ([{"vendor_id": "10de", "product_id": "1eb8", "managed": "yes"}], ["0000:09:00.0"]),
    # All parts of a card are listed with it; and who gives out the card gives out its parts.
    ([{"address": "0000:11:00.0"}], ["0000:11:01.0", "0000:11:01.1"]),
    ([{"address": "0000:11:00.*"}], ["0000:11:01.0", "0000:11:01.1"]),
    ([{"vendor_id": "10de", "product_id": "ffff"}, {"devname": "eth7"}], []),
]


def test_what_nova_would_give_out_too_is_named(discover, tmp_path):
    nova = tmp_path / "nova.conf"
    for listed, twice in LISTED:
        lines = [f"device_spec = {json.dumps(each)}" for each in listed]
        nova.write_text("\n".join(["[DEFAULT]", "host = x", "[pci]", *lines]))
        done = discover("--json", "--nova-conf", str(nova))
        assert done.returncode == (1 if twice else 0), done.stderr
        found = json.loads(done.stdout)["given_out_by_nova"]
        assert [each["address"] for each in found] == twice, listed
        said = discover("--nova-conf", str(nova)).stdout
        assert said.count("Nova's [pci] device_spec") == len(twice), listed

    # By its old name, and what is no list.
    nova.write_text('[pci]\npassthrough_whitelist = [{"vendor_id": "10de"}]\n')
    assert "Nova's [pci] device_spec" in discover("--nova-conf", str(nova)).stdout
    nova.write_text("[pci]\ndevice_spec = 10de\n")
    done = discover("--nova-conf", str(nova))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "[pci] device_spec '10de' is not JSON" in done.stderr
    assert "nova.conf" in discover("--nova-conf", "/absent/nova.conf").stderr


def other(name: str, ids: str, code: str, driver: str | None = None) -> dict[str, Any]:
    """A card of which nothing is known but this."""
    return {"card": "ascend310", "name": name, "id": ids, "class": code, "driver": driver}


#: What an operator may take for an accelerator, and no driver offers.
UNKNOWN = [
    other("nvswitch", "10de:22a3", "068000", "nvidia-nvswitch"),
    other("alveo", "10ee:903f", "070001"),
    other("memory-controller", "10ee:d000", "058000"),
    other("unassigned", "1172:09c4", "ff0000"),
    other("cxl", "1e98:d000", "050210", "cxl_pci"),
    other("npu", "1022:17f0", "118000"),
    other("coprocessor", "1d94:54b7", "0b4000", "hydcu"),
    other("trainium", "1d0f:7164", "088000", "neuron"),
    other("tpu", "1ae0:0063", "ff0000"),
    other("octeon", "177d:a0f3", "108000"),
    other("dcu", "1d94:54b7", "038000", "hydcu"),
]
#: Of the same classes and vendors, and none.
UNNAMED = [
    other("uncore", "8086:3250", "088000", None),
    other("sensors", "8086:a1a1", "118000", None),
    other("controller", "1022:1481", "080600", None),
    other("secure", "1022:1486", "108000", None),
]


def test_what_is_like_an_accelerator_is_named_and_the_uncore_is_not(simulate, configured):
    host = simulate({"cards": [*UNKNOWN, *UNNAMED]})

    found = left_out(
        host.call(in_process, *configured("nvidia_gpu_driver"), "discover", "--json")
    )

    assert found.keys() == {host.card(each["name"]) for each in UNKNOWN}
    assert all(reason and remedy for reason, remedy in found.values())


@pytest.mark.parametrize(("iommu", "driver"), [(True, "t4"), (False, "t4"), (False, "nvme-system")])
def test_a_host_without_an_iommu_is_told_if_a_guest_could_want_a_function(
    simulate, configured, iommu, driver
):
    host = simulate({"cards": [driver], "iommu": iommu})
    done = host.call(in_process, *configured("nvidia_gpu_driver"), "discover", "--json")
    said = json.loads(done.stdout)["errors"]
    assert done.returncode == 0
    assert ("This host has no IOMMU groups" in said.get("agent", "")) == (
        driver == "t4" and not iommu
    )


def test_what_a_list_names_is_offered_refused_or_said_to_match_nothing(simulate, configured):
    """One list may be for many hosts: what it lacks here is said, and is no failure."""
    port = {"card": "connectx6", "name": "port", "sriov": None, "vfs": 0}
    cards = [port, {"card": "qat-4xxx", "vfs": 2}, "nvme-system"]
    host = simulate({"cards": cards, "mounts": {"/": "nvme0n1p2"}})
    part = host.vfs(host.card("qat-4xxx"))[1]
    named = configured(
        "nic_driver,intel_qat_driver,nvme_driver,mdev_driver",
        'sriov_spec = {"vendor_id": "14e4", "numvfs": 1}\n'
        '[nic_driver]\ndevice_spec = {"vendor_id": "15b3", "physical_network": "p"}\n'
        f'[intel_qat_driver]\ndevice_spec = {{"address": "{part}"}}\n'
        'device_spec = {"product_id": "37c8"}\n'
        '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n'
        '[mdev]\nmdev_spec = {"mdev_type": "i915-1", "parent": "0000:ff:*"}\n',
    )

    done = host.call(in_process, *named, "discover", "--json")

    assert done.returncode == 0, done.stdout
    document = json.loads(done.stdout)
    handles = [
        each["attach_info"]
        for device in document["devices"]
        for provider in device["providers"]
        for each in provider["attach_handles"]
    ]
    assert [pci.join(each) for each in handles] == [part]
    ((entry,),) = [
        [provider["entry"] for provider in device["providers"]] for device in document["devices"]
    ]
    assert entry == "object 1 of [intel_qat_driver] device_spec"
    assert f"by {entry}" in host.call(in_process, *named, "discover").stdout
    found = left_out(done)
    assert "it has no SR-IOV" in found[host.card("port")][0]
    assert "the host uses it for /" in found[host.card("nvme-system")][0]
    errors = document["errors"]
    assert errors.keys() == {"nic_driver", "intel_qat_driver", "mdev_driver"}
    assert "it has no SR-IOV" in errors["nic_driver"]
    assert errors["intel_qat_driver"] == (
        "Object 2 of [intel_qat_driver] device_spec matches nothing on this host"
    )
    assert "Object 1 of [mdev] mdev_spec" in errors["mdev_driver"]
    assert any("Object 1 of [agent] sriov_spec" in each for each in document["changes"])
