# SPDX-License-Identifier: Apache-2.0
"""The tutorials, followed from their text; only what their last section names is another one."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg.cmd import known_options
from cyborg.tests import nova_commands
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.kube_node import Node
from cyborg.tests.kube_types import as_read
from cyborg.tests.servers import REPOSITORY
from cyborg.tests.standalone_site import HOST, TIMEOUT, Site, wait_for
from cyborg.tests.tutorial import Block, Shell, Tutorial

pytestmark = pytest.mark.slow

NOTHING = 'echo "$0 $@"'
#: Prints what the CDI file of the device gives, as a container of it would.
PODMAN = 'file=$(grep -l "${4##*=}" "$CDI"/*.json)\ngrep \'"path"\' "$file"'
#: Takes files that are there.
KUBECTL = """
for word in "$@"; do case $word in *.yaml | --from-file=*) test -f "${word#*=}" ;; esac; done
"""
FUNCTION = "d8424dc4-a4a3-c413-f89e-433683f9040b"

After = Callable[[Block], None]


def follow(page: Tutorial, shell: Shell, after: After = lambda block: None) -> str:
    """Do what the page says; all that its commands print."""
    printed = ""
    for block in page.blocks():
        if block.file:
            path = shell.write(block)
            if block.language == "ini":
                check_options(path)
            elif block.language == "yaml":
                check_manifests(path)
        else:
            printed += shell.run(block.text)
        after(block)
    return printed


def check_options(path: pathlib.Path) -> None:
    """Each option exists, and has a value that it can have."""
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(args=[], project="cyborg", default_config_files=[str(path)], default_config_dirs=[])
    assert known_options.unread(conf) == []
    for group, options in cyborg_conf.GROUPS.items():
        for option in options:
            getattr(conf[group] if group else conf, option.dest)


def check_manifests(path: pathlib.Path) -> None:
    """Kubernetes' own types read all of it."""
    for document in yaml.safe_load_all(path.read_text()):
        assert as_read(document) == document


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def variables(endpoint: str, folder: pathlib.Path, **more: str) -> dict[str, str]:
    """The credentials of an administrator, and what the stand-ins need."""
    credentials = {"OS_AUTH_TYPE": "none", "OS_ENDPOINT": endpoint}
    return {**credentials, "CLOUD": str(folder / "cloud"), "PYTHONPATH": str(REPOSITORY), **more}


def served(site: Site) -> Iterator[Site]:
    """The cloud that a page begins with: its agent has reported."""
    with site.serve():
        rest_of(site)
        yield site


def rest_of(site: Site) -> None:
    wait_for("the device", lambda: site.ask("GET", "/v2/devices")["devices"])
    wait_for("Placement", site.is_at_rest)


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Iterator[Site]:
    yield from served(Site(tmp_path / "site"))


def test_a_server_with_a_gpu(cloud: Site, home: pathlib.Path) -> None:
    page = Tutorial("server", {"/etc/cyborg": ".cyborg"})
    programs = {"openstack": nova_commands.SCRIPT, "systemctl": NOTHING}
    assert {"openstack flavor", "openstack server", "systemctl"} <= page.declared
    printed = follow(page, Shell(home, programs, variables(f"{cloud.url}/v2", home)))
    before, during, after = printed.partition("| Bound ")
    assert "fake_driver" in before
    assert HOST in before
    assert during
    assert "Bound" not in after
    assert "| used " in after


@pytest.fixture
def fpgas(tmp_path: pathlib.Path, images: GlanceServer) -> Iterator[Site]:
    config = f"""
[fake_driver]
program_mode = dynamic
[glance]
auth_type = none
endpoint_override = {images.url}
[programming]
cache_path = {tmp_path}/bitstreams
"""
    yield from served(Site(tmp_path / "site", config))


def test_an_fpga_function(fpgas: Site, images: GlanceServer, home: pathlib.Path) -> None:
    page = Tutorial("fpga", {"/etc/cyborg": ".cyborg"})
    assert "aes.gbs" in page.declared
    (home / "aes.gbs").write_text(json.dumps({"function": FUNCTION}))
    given = variables(f"{fpgas.url}/v2", home, GLANCE=images.url)
    printed = follow(page, Shell(home, {"openstack": nova_commands.SCRIPT}, given))
    assert "| succeeded " in printed
    assert "| Active " in printed
    assert fpgas.ask("GET", "/v2/deployables")["deployables"][0]["bitstream_id"]


class Pod:
    """What the scheduler and the kubelet do after commands of ``kubectl``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def see(self, block: Block) -> None:
        node = self._node
        if "kubectl label" in block.text:
            self._plugin = node.start()
            assert len(node.devices()) == 4
        elif "kubectl apply -f train.yaml" in block.text:
            self._claim = node.cluster.claim(node.devices()[0])
            assert self._plugin.prepare(self._claim)[self._claim[2]].error == ""
            assert node.files() == 1
        elif "kubectl delete pod" in block.text:
            assert self._plugin.unprepare(self._claim)[self._claim[2]].error == ""
            node.site.hurry(lambda: not node.site.held())


def test_a_gpu_for_a_pod(node: Node, home: pathlib.Path) -> None:
    node.site.start(handles_per_device=4)
    (home / "etc").symlink_to(REPOSITORY / "etc")
    folders = {"/etc/cyborg": ".cyborg", "/etc/systemd/system": "systemd"}
    page = Tutorial("pod", {**folders, "/run/cyborg-cdi": str(node.cdi)})
    programs = {"kubectl": KUBECTL, "systemctl": NOTHING, "podman": NOTHING}
    assert programs.keys() <= page.declared
    programs["openstack"] = nova_commands.SCRIPT
    pod = Pod(node)

    shell = Shell(home, programs, variables(node.site.endpoint, home))
    printed = follow(page, shell, pod.see)
    assert printed.count("KUBERNETES") == 1
    assert "cyborg_kube" in (home / ".cyborg" / "policy.yaml").read_text()


def test_a_gpu_for_podman(home: pathlib.Path) -> None:
    site = Site(home / "state")
    folders = {"/run/cdi": str(home / "cdi"), "/var/lib/cyborg": str(home / "state")}
    page = Tutorial("podman", {**folders, "6666": site.url.rpartition(":")[2]})
    programs = {"podman": PODMAN, "nvidia-smi": NOTHING}
    assert programs.keys() <= page.declared
    shell = Shell(home, programs, {"CDI": folders["/run/cdi"], "PYTHONPATH": str(REPOSITORY)})
    files, start, *rest = page.blocks()
    check_options(shell.write(files))
    command = shell.command(f"exec {start.text}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline().startswith("Cyborg is ready: ")
            rest_of(site)
            printed = "".join(shell.run(block.text) for block in rest)
        finally:
            service.terminate()
            service.wait(TIMEOUT)
    assert "| Active " in printed
    assert printed.count('"path": "/dev/null"') == 2
    assert "nvidia-smi -i 0000:0c:0" in printed
    assert "| used " in printed
    assert list((home / "cdi").glob("*.json")) == []
