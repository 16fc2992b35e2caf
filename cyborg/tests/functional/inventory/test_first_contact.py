# SPDX-License-Identifier: Apache-2.0
"""What an operator gets wrong first: each command says it in one sentence, and stops."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg.cmd import ironic
from cyborg.db import revision, schema

SERVICES = ["cyborg-api", "cyborg-conductor"]
WITH_DATABASE = [*SERVICES, "cyborg-dbsync version", "cyborg-dbsync upgrade"]
ALL = [*WITH_DATABASE, "cyborg-agent", "cyborg-status check"]

Write = Callable[..., pathlib.Path]

FOREIGN = "schema of another program, at revision 4cc1d79978fc"


def run(
    command: str, *files: pathlib.Path, merged: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; its output may be merged, as a terminal shows it."""
    name, *words = command.split()
    options = [part for file in files for part in ("--config-file", str(file))]
    return subprocess.run(
        [str(pathlib.Path(sys.executable).with_name(name)), *options, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        text=True,
        check=False,
        timeout=180,
    )


def stops(command: str, *files: pathlib.Path) -> str:
    """What the command says, in one line, before it ends with status 1."""
    done = run(command, *files)
    assert done.returncode == 1, done
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"{command.partition(' ')[0]}: ")
    assert done.stdout == ""
    return sentence


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    def written(
        connection: str | None = None, transport: str = "rabbit://127.0.0.1:1/", more: str = ""
    ) -> pathlib.Path:
        file = tmp_path / "cyborg.conf"
        lines = ["[DEFAULT]", f"transport_url = {transport}", "[database]"]
        lines += [f"connection = {connection}"] if connection else []
        file.write_text("\n".join([*lines, more]))
        return file

    return written


@pytest.fixture
def foreign(tmp_path: pathlib.Path) -> str:
    """A database as an Alembic of others leaves it."""
    url = f"sqlite:///{tmp_path}/foreign.sqlite"
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(sa.text("INSERT INTO alembic_version VALUES ('4cc1d79978fc')"))
        connection.execute(sa.text("CREATE TABLE devices (id INTEGER)"))
    return url


@pytest.mark.parametrize("command", ["cyborg-standalone", "cyborg-status"])
def test_help_as_it_is_installed(command: str) -> None:
    done = run(f"{command} --help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {command} ")


@pytest.mark.parametrize("command", WITH_DATABASE)
def test_no_database_is_named(command: str, write: Write) -> None:
    assert "[database] connection is not set" in stops(command, write())


@pytest.mark.parametrize(
    ("connection", "sentence"),
    [
        ("localhost/cyborg:secret", "is not the URL of a database"),
        ("msql+pymysql://cyborg:secret@localhost/cyborg", "names msql+pymysql, which"),
        ("mysql+oursql://cyborg:secret@localhost/cyborg", "names mysql+oursql, which"),
        ("mysql+mysqlconnector://cyborg:secret@localhost/c", "needs the Python module mysql"),
    ],
)
@pytest.mark.parametrize("command", ["cyborg-api", "cyborg-dbsync upgrade"])
def test_a_url_that_is_none(command: str, connection: str, sentence: str, write: Write) -> None:
    said = stops(command, write(connection))
    assert sentence in said
    assert "secret" not in said


@pytest.mark.parametrize("command", [*WITH_DATABASE, "cyborg-status host keys h"])
def test_a_file_that_is_no_database(
    command: str, tmp_path: pathlib.Path, write: Write
) -> None:
    text = write()
    for file in (tmp_path / "none" / "x", text):
        said = stops(command, write(f"sqlite:///{file}"))
        assert f"names the file {file}, which cannot be used" in said


def test_the_checks_say_first_what_keeps_them_from_looking(write: Write) -> None:
    check = run("cyborg-status check", write(), merged=True)
    assert check.returncode == 2
    first, *_rest = check.stdout.splitlines()
    assert first == (
        "Not everything could be checked: There is no database: [database] connection is not set."
    )


@pytest.mark.parametrize(
    "command", ["cyborg-dbsync upgrade", "cyborg-dbsync version", "cyborg-status host keys h"]
)
def test_a_database_that_does_not_answer(command: str, write: Write) -> None:
    said = stops(command, write("mysql+pymysql://cyborg:secret@127.0.0.1:1/cyborg"))
    assert "does not answer" in said
    assert "secret" not in said


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("command", ["cyborg-agent", "cyborg-conductor"])
@pytest.mark.parametrize(
    ("transport", "sentence"),
    [
        ("rabit://user:secret@host/", "begins with rabit, which"),
        ("rabbit://user:secret@host:port/", "is not the URL of a message broker"),
        ("rabbit://user:secret@host/\nrpc_exchange = nova", "option rpc_exchange"),
    ],
)
def test_a_broker_that_is_none(
    command: str, transport: str, sentence: str, write: Write, database_url: str
) -> None:
    done = run(command, write(database_url, transport))
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert sentence in said
    assert "Traceback" not in done.stdout
    assert "secret" not in said


@pytest.mark.parametrize("command", ALL)
def test_a_file_that_cannot_be_read(command: str, tmp_path: pathlib.Path, write: Write) -> None:
    missing = tmp_path / "missing.conf"
    assert str(missing) in stops(command, missing)
    assert "cyborg.conf" in stops(command, write("sqlite://", more="this is no option"))


def test_a_log_that_cannot_be_written(tmp_path: pathlib.Path, write: Write) -> None:
    file = write("sqlite://")
    more = tmp_path / "more.conf"
    more.write_text(f"[DEFAULT]\nlog_file = {tmp_path}/none/cyborg.log\n")
    assert f"{tmp_path}/none/cyborg.log" in stops("cyborg-api", file, more)


@pytest.mark.parametrize("command", [*SERVICES, "cyborg-dbsync upgrade", "cyborg-dbsync version"])
def test_the_schema_of_another_program(command: str, foreign: str, write: Write) -> None:
    assert FOREIGN in stops(command, write(foreign))


@pytest.mark.usefixtures("quiet_openstack")
def test_the_nodes_of_ironic_and_the_schema_of_another_program(
    foreign: str,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cfg, "CONF", cfg.ConfigOpts())
    with pytest.raises(SystemExit) as ended:
        ironic.main(["--config-file", str(write(foreign)), "forget", "--all"])
    assert ended.value.code == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert FOREIGN in said


def test_the_checks_of_the_schema_of_another_program(foreign: str, write: Write) -> None:
    file = write(foreign)
    check = run("cyborg-status check", file)
    assert check.returncode == 2
    assert FOREIGN in check.stderr
    assert "dbsync upgrade" not in check.stderr
    upgrade = run("cyborg-status upgrade check", file)
    assert upgrade.returncode == 2
    assert "schema of another program" in " ".join(upgrade.stdout.replace("|", " ").split())


@pytest.mark.parametrize("command", SERVICES)
def test_a_database_without_a_schema(command: str, tmp_path: pathlib.Path, write: Write) -> None:
    assert "run `cyborg-dbsync upgrade` first" in stops(command, write(f"sqlite:///{tmp_path}/x"))


def test_the_schema_of_a_newer_release_is_served(database: sa.Engine) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = 'ffff'"))
    revision.check()


def test_an_upgrade_says_what_it_did(tmp_path: pathlib.Path, write: Write) -> None:
    file = write(f"sqlite:///{tmp_path}/x")
    for before in ("none", schema.head()):
        done = run("cyborg-dbsync upgrade", file)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"The schema is at revision {schema.head()}; it was at {before}.\n"


def test_there_is_no_data_to_migrate_online(tmp_path: pathlib.Path, write: Write) -> None:
    file = write(f"sqlite:///{tmp_path}/x")
    done = run("cyborg-dbsync online_data_migrations --max-count 50", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no data to migrate" in done.stdout
