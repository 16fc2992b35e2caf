# SPDX-License-Identifier: Apache-2.0
"""The pages that install, save, restore, upgrade and import, followed to the letter.

Only names and addresses are others.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest
import requests
import sqlalchemy as sa
from keystoneauth1 import adapter, exceptions, session

from cyborg.tests import bare_machine, keystone_server, servers, tls, upstream_rows
from cyborg.tests.bare_machine import Machine
from cyborg.tests.keystone_server import Keystone
from cyborg.tests.ports import free_port
from cyborg.tests.standalone_site import TIMEOUT, wait_for

pytestmark = pytest.mark.services

_PROCESS = pathlib.Path(keystone_server.__file__).with_name("keystone_process.py")


@pytest.fixture
def unique() -> str:
    """Part of the names in the servers that tests share."""
    return f"install_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def host(unique: str) -> str:
    """The name of the compute host."""
    return f"compute-{unique.replace('_', '-')}"


@contextlib.contextmanager
def process(command: list[str], log: pathlib.Path, **variables: str) -> Iterator[None]:
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | variables
        )
    try:
        yield
    finally:
        started.terminate()
        started.wait(TIMEOUT)


@pytest.fixture
def cloud_keystone(tmp_path: pathlib.Path) -> Iterator[Keystone]:
    """A Keystone of the test's own, which knows nothing of Cyborg."""
    folder = tmp_path / "keystone"
    folder.mkdir()
    known = folder / "known.json"
    with process([sys.executable, str(_PROCESS), str(known)], folder / "log"):
        wait_for("Keystone", known.exists)
        keystone = Keystone(**json.loads(known.read_text()))
        api = keystone.api()
        (user,) = api.get(f"/users?name={keystone.service_user}").json()["users"]
        api.delete(f"/users/{user['id']}")
        # Placement's own user.
        project = api.get(f"/projects?name={keystone.service_project}").json()["projects"][0]
        made = {"name": "placement", "password": keystone.password, "domain_id": "default"}
        user = api.post("/users", json={"user": made}).json()["user"]
        role = api.get("/roles?name=service").json()["roles"][0]
        api.put(f"/projects/{project['id']}/users/{user['id']}/roles/{role['id']}")
        yield keystone


@pytest.fixture
def cloud_placement(cloud_keystone, host, tmp_path) -> Iterator[adapter.Adapter]:
    """Placement in the catalogue, with the root provider that Nova makes."""
    keystone, folder, port = cloud_keystone, tmp_path / "placement", free_port()
    folder.mkdir()
    (folder / "placement.conf").write_text(
        f"""
[api]
auth_strategy = keystone
[placement_database]
connection = sqlite:///{folder}/placement.sqlite
sync_on_startup = true
[keystone_authtoken]
auth_type = password
auth_url = {keystone.url}
www_authenticate_uri = {keystone.url}
username = placement
password = {keystone.password}
project_name = {keystone.service_project}
user_domain_id = default
project_domain_id = default
"""
    )
    url = f"http://127.0.0.1:{port}"
    api = keystone.api()
    service = {"service": {"name": "placement", "type": "placement"}}
    made = api.post("/services", json=service).json()["service"]
    endpoint = {"service_id": made["id"], "interface": "public", "url": url}
    api.post("/endpoints", json={"endpoint": endpoint | {"region_id": keystone.region}})
    program = str(pathlib.Path(sys.executable).with_name("cheroot"))
    # One thread, since SQLite refuses a second writer.
    command = [program, "placement.wsgi.api:application", "--bind", f"127.0.0.1:{port}"]
    with process(
        [*command, "--threads", "1"], folder / "log", OS_PLACEMENT_CONFIG_DIR=str(folder)
    ):
        admin = keystone.log_in(keystone.admin_user, keystone.admin_project)
        placement = adapter.Adapter(session.Session(auth=admin), service_type="placement")

        def make_root() -> bool:
            try:
                placement.post("/resource_providers", json={"name": host})
            except exceptions.ClientException:
                return False
            return True

        wait_for("Placement", make_root)
        yield placement


@pytest.fixture
def mariadb(unique: str) -> Iterator[dict[str, str]]:
    """Scripts that run MariaDB's clients as the server's administrator."""
    engine = sa.create_engine(servers.url_of("mysql"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        socket = connection.scalar(sa.text("SELECT @@socket"))
        options = f"--no-defaults --socket={socket} --user=root"
        yield {
            name: f'exec /usr/bin/{name} {options} "$@"' for name in ("mariadb", "mariadb-dump")
        }
        for name in (unique, f"{unique}_new"):
            connection.execute(sa.text(f"DROP DATABASE IF EXISTS {name}"))
            connection.execute(sa.text(f"DROP USER IF EXISTS '{name}'"))
    engine.dispose()


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[dict[str, str]]:
    """Where RabbitMQ listens with TLS, and whom to trust for that."""
    plain = sa.make_url(servers.url_of("rabbitmq"))
    authority = tls.Authority(tmp_path)
    with tls.in_front_of(plain.port or 0, authority.server_context()) as port:
        yield {"RABBIT_HOST": f"{plain.host}:{port}", "RABBIT_CA": str(authority.file)}


@pytest.fixture
def rabbitmqctl(unique: str, host: str) -> Iterator[str]:
    """A script that runs ``rabbitmqctl`` for the server of the tests."""
    folder = os.environ.get("CYBORG_SERVICES_DIR", "")
    yield (
        f"{f'export CYBORG_SERVICES_DIR={folder}' if folder else ''}\n"
        f'exec {servers.REPOSITORY}/tools/services.sh rabbitmqctl "$@"'
    )
    for words in (
        ("delete_vhost", unique),
        ("delete_user", unique),
        ("delete_user", f"cyborg-agent-{host}"),
    ):
        # The test may have ended before it was made.
        with contextlib.suppress(subprocess.CalledProcessError):
            servers.rabbitmqctl(*words)


@pytest.fixture
def required(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What each machine has before, which all processes of a run share."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a machine to install on")
    folder = tmp_path_factory.getbasetemp()
    return bare_machine.required(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


Make = Callable[[str], Machine]


@pytest.fixture
def make(required, cloud_keystone, mariadb, rabbitmqctl, tmp_path) -> Iterator[Make]:
    """Makes machines with a shell of the cloud's administrator."""
    credentials = {
        "OS_AUTH_URL": cloud_keystone.url,
        "OS_USERNAME": cloud_keystone.admin_user,
        "OS_PASSWORD": cloud_keystone.password,
        "OS_PROJECT_NAME": cloud_keystone.admin_project,
        "OS_USER_DOMAIN_ID": "default",
        "OS_PROJECT_DOMAIN_ID": "default",
        "OS_IDENTITY_API_VERSION": "3",
    }
    with contextlib.ExitStack() as stack:

        def made(name: str) -> Machine:
            programs = mariadb | {"rabbitmqctl": rabbitmqctl}
            machine = Machine(tmp_path / name, programs, credentials, required)
            stack.callback(machine.stop)
            return machine

        yield made


def _different(unique: str, host: str, port: int, broker: dict[str, str]) -> dict[str, str]:
    """What is not as on the pages."""
    database = sa.make_url(servers.url_of("mysql"))
    return {
        "DB_HOST": f"{database.host}:{database.port}",
        "DB_NAME": unique,
        "DB_USER": unique,
        **broker,
        "RABBIT_VHOST": unique,
        "RABBIT_USER": unique,
        "API_ADDRESS": f"127.0.0.1:{port}",
        "HOST": host,
        "DRIVERS": "fake_driver",
    }


def test_followed_to_the_letter_they_give_a_cyborg_that_works(
    make, cloud_keystone, cloud_placement, broker, unique, host, tmp_path
) -> None:
    port = free_port()
    different = _different(unique, host, port, broker) | {
        "KEYSTONE_URL": cloud_keystone.url,
        "INTERFACE": "public",
        "API_URL": f"http://127.0.0.1:{port}/v2",
    }
    controller = make("controller")
    controller.follow("install/controller", different)
    assert requests.get(f"http://127.0.0.1:{port}/healthcheck", timeout=TIMEOUT).ok

    # The line that it has printed.
    printed = controller.follow("install/controller", different, "The key of the conductors")
    different["CONDUCTOR_KEY"] = printed.strip()
    compute = make("compute")
    _install_agent(controller, compute, different)
    name = f"{host}_FakeDevice"

    def offered() -> bool:
        found = cloud_placement.get("/resource_providers").json()["resource_providers"]
        return any(each["name"] == name for each in found)

    wait_for("the device", offered)
    own, strangers = compute.run(_UNSIGNED).splitlines()
    assert "The message is not signed." in own
    # What the option alone refuses.
    assert "No key of host stranger is enrolled" in strangers
    there = controller.follow(
        "install/verify", different, "Is it there?", "The first device profile"
    )
    assert host in there
    _save_and_restore(controller, compute, different)
    _upgrade(controller, compute, different)
    _import(controller, different, tmp_path)


#: Reports that the host has no devices, and of a host that nobody knows, by the broker's user of
#: the host, without a key.
_UNSIGNED = """\
/opt/cyborg/bin/python -I - <<EOF
from oslo_config import cfg
from cyborg import process, rpc
process.read_options(cfg.CONF, ["--config-file", "/etc/cyborg/cyborg.conf"])
rpc.configure(cfg.CONF, replies_of=cfg.CONF.host)
for host in (cfg.CONF.host, "stranger"):
    empty = {"started": 0, "counter": 0, "errors": {}, "devices": {}}
    try:
        rpc.report(cfg.CONF, rpc.HostReport(host=host, node=host, **empty))
    except rpc.ReportFailed as exc:
        print(exc)
rpc.close()
EOF
"""


def _install_agent(controller: Machine, compute: Machine, different: dict[str, str]) -> None:
    """With the key of the host, which the page says to enrol on a controller."""
    for title in bare_machine.sections("install/compute"):
        machine = controller if title == "To enrol the key" else compute
        output = machine.follow("install/compute", different, title)
        if title == "The key of the host":
            different["HOST_KEY"] = output.strip()


def _save_and_restore(controller: Machine, compute: Machine, different: dict[str, str]) -> None:
    """What was deleted after the database was saved is there again."""
    _what, saved, *restored = bare_machine.sections("admin/backup")
    controller.follow("admin/backup", different, saved)
    controller.run("openstack accelerator device profile delete first")
    for title in restored:
        machine = compute if title.endswith("the agents") else controller
        machine.follow("admin/backup", different, title)
    assert "first" in controller.run("openstack accelerator device profile list")


def _upgrade(controller: Machine, compute: Machine, different: dict[str, str]) -> None:
    """To the same release, which changes nothing, and every service is another process after it."""
    services = ("cyborg-api", "cyborg-conductor", "cyborg-agent")
    before = [machine.pids() for machine in (controller, compute)]
    for title in bare_machine.sections("admin/upgrade"):
        machine = compute if title == "The agents" else controller
        machine.follow("admin/upgrade", different, title)
    after = [machine.pids() for machine in (controller, compute)]
    assert {name for each in after for name in each} == set(services)
    assert not {pid for each in before for pid in each.values()} & {
        pid for each in after for pid in each.values()
    }


def _import(controller: Machine, different: dict[str, str], tmp_path: pathlib.Path) -> None:
    """Into a new database; all ARQs of upstream are there then."""
    name = different["DB_NAME"]
    file = tmp_path / "old.conf"
    other = different | {"DB_NAME": f"{name}_new", "DB_USER": f"{name}_new", "OLD_CONF": str(file)}
    other["SERVICE_PASS"] = controller.run("echo $SERVICE_PASS").strip()
    with servers.new_database("mysql", f"{name}_old") as url:
        file.write_text(f"[database]\nconnection = {url}\n")
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        upstream_rows.make_tables(engine, "17")
        upstream_rows.fill(engine, "17")
        controller.follow("install/controller", other, "Names and passwords", "The database")
        first, second, *_rest = bare_machine.sections("admin/import")
        controller.follow("admin/import", other, first)
        # What runs here stands for the old services.
        controller.run("systemctl stop cyborg-api cyborg-conductor")
        controller.follow("admin/import", other, second)
    titles = list(bare_machine.sections("install/controller"))
    rest = titles[titles.index("The message broker") :]
    controller.follow("install/controller", other, *(each for each in rest if each != "Keystone"))
    shown = controller.run("openstack accelerator arq list --all-projects --format json")
    known = {arq["uuid"]: arq["state"] for arq in json.loads(shown)}
    imported = {arq["uuid"]: arq["state"] for arq in upstream_rows.ROWS[upstream_rows.ARQS]}
    # Conductors may have deleted by now what was never bound, and is old.
    assert known.keys() <= imported.keys()
    bound = {uuid for uuid, state in imported.items() if state == "Bound"}
    assert {known.get(uuid) for uuid in bound} == {"Bound"}


def test_only_what_needs_nova_is_not_run() -> None:
    """Nothing here boots servers or has images: the tests of the real Nova run those sections."""
    titles = ["Is it there?", "The first device profile", "The first server", "The first program"]
    assert list(bare_machine.sections("install/verify")) == titles


def test_every_block_of_commands_is_found() -> None:
    names = ("standalone", "controller", "compute", "verify", "container")
    others = ("admin/backup", "admin/upgrade", "admin/import")
    for page in (*(f"install/{name}" for name in names), *others):
        text = (bare_machine.PAGES / f"{page}.rst").read_text()
        blocks = [block for found in bare_machine.sections(page).values() for block in found]
        assert len(blocks) == len(re.findall(r"code-block:: (?!ini)|::$", text, re.MULTILINE)) > 0


@pytest.fixture
def bare(required, mariadb, rabbitmqctl, tmp_path) -> Iterator[Machine]:
    """A machine without a cloud around it."""
    podman = f'exec {bare_machine.DATA}/tools/podman "$@"'
    programs = mariadb | {"rabbitmqctl": rabbitmqctl, "podman": podman}
    made = Machine(tmp_path / "machine", programs, {}, required)
    yield made
    made.stop()


def test_containers(bare, broker, unique, host) -> None:
    """All but Keystone, which the page of the controller is tested with, and the engine's work."""
    port = free_port()
    different = _different(unique, host, port, broker)
    page, controller, compute = "install/container", "install/controller", "install/compute"
    bare.follow(page, different, "The image")
    _image_has_every_service(bare)
    bare.follow(controller, different, "Names and passwords", "The database")
    bare.follow(controller, different, "The message broker")
    different["CONDUCTOR_KEY"] = bare.follow(
        controller, different, "The key of the conductors"
    ).strip()
    bare.follow(controller, different, "The configuration")
    bare.follow(page, different, "The controller")
    wait_for("the API", lambda: _answers(f"http://127.0.0.1:{port}/healthcheck"))

    # The host is the same bare, so each of them has the folder for a while.
    bare.run("mv /etc/cyborg /etc/cyborg-controller; cp -a /etc/cyborg-controller /etc/cyborg")
    bare.follow(compute, different, "Names and passwords", "A user of the broker")
    bare.run(bare_machine.sections(compute)["The configuration"][0])
    *_found, different["HOST_KEY"] = bare.follow(page, different, "The agent").splitlines()
    bare.run("mv /etc/cyborg /etc/cyborg-agent; mv /etc/cyborg-controller /etc/cyborg")
    bare.follow(page, different, "To enrol its key")
    bare.run("mv /etc/cyborg /etc/cyborg-controller; mv /etc/cyborg-agent /etc/cyborg")
    bare.follow(page, different, "To start it")
    wait_for("the device", lambda: _has_device(unique, host))
    bare.follow(page, different, "Another release")


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=TIMEOUT).ok
    except requests.ConnectionError:
        return False


def _has_device(database: str, host: str) -> bool:
    engine = sa.create_engine(
        sa.make_url(servers.url_of("mysql")).set(database=database), poolclass=sa.NullPool
    )
    with engine.connect() as connection:
        found = connection.scalars(sa.text("SELECT name FROM deployables")).all()
    return list(found) == [f"{host}_FakeDevice"]


def _image_has_every_service(bare: Machine) -> None:
    programs = ("cyborg-conductor", "cyborg-api", "cyborg-agent", "cyborg-dbsync", "cyborg-status")
    for program in programs:
        said = bare.run(f"podman run --rm cyborg {program} --version 2>&1")
        assert said.strip().endswith("18.0.0")
    bare.run("podman run --rm cyborg gunicorn --version")
    # The interpreter may be in a folder of root's, where there is no base image.
    bare.run("podman run --rm --user root cyborg python3 -c 'import pymysql, psycopg2'")
    bare.run("podman run --rm cyborg touch /var/lib/cyborg/file")


def test_standalone(bare: Machine) -> None:
    page, port = "install/standalone", free_port()
    # What is there is lost with the machine.
    different = {
        "VENV": "/opt/cyborg",
        "STATE": "/var/lib/standalone",
        "PORT": str(port),
    }
    bare.follow(page, different, "The programs")
    (start,) = bare_machine.sections(page)["Start it"]
    bare.begin("standalone", start)
    wait_for("the API", lambda: _answers(f"http://127.0.0.1:{port}/healthcheck"))
    bare.follow(page, different, "Use it")
    assert bare.run("openstack accelerator allocation list --format value") == ""
    assert "first" in bare.run("openstack accelerator device profile list")
