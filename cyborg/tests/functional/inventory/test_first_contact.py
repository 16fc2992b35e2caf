# SPDX-License-Identifier: Apache-2.0
"""What an operator gets wrong first: each command says it in one sentence, and stops."""

from __future__ import annotations

import contextlib
import importlib
import io
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.db import revision, schema

SERVICES = ["cyborg-api", "cyborg-conductor"]
WITH_DATABASE = [*SERVICES, "cyborg-dbsync version", "cyborg-dbsync upgrade"]
CHANGING = ["cyborg-api", "cyborg-dbsync upgrade"]
READING = [*WITH_DATABASE, "cyborg-status host keys h"]
COMMANDS = ["cyborg-dbsync upgrade", "cyborg-dbsync version", "cyborg-status host keys h"]
ALL = [*WITH_DATABASE, "cyborg-agent", "cyborg-status check"]

Write = Callable[..., pathlib.Path]

FOREIGN = "schema of another program, at revision 4cc1d79978fc"


def run(command: str, *files: pathlib.Path, merged: bool = False) -> tuple[int, str, str]:
    """Run it in this process; its status, and what it says, merged as in a terminal if so."""
    name, *words = command.split()
    program = importlib.import_module(f"cyborg.cmd.{name.removeprefix('cyborg-')}")
    options = [part for file in files for part in ("--config-file", str(file))]
    out = io.StringIO()
    err = out if merged else io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(cfg, "CONF", cfg.ConfigOpts())
        patch.setattr(sys, "argv", [name, *options, *words])
        try:
            status = program.main() or 0
        except SystemExit as ended:
            status = ended.code
    db.dispose()
    return status, out.getvalue(), err.getvalue()


def stops(command: str, *files: pathlib.Path) -> str:
    """What the command says, in one line, before it ends with status 1."""
    status, out, err = run(command, *files)
    assert (status, out) == (1, ""), err
    (sentence,) = err.splitlines()
    assert sentence.startswith(f"{command.partition(' ')[0]}: ")
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


def test_help_as_it_is_installed() -> None:
    program = pathlib.Path(sys.executable).with_name("cyborg-status")
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: cyborg-status ")


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize(
    ("commands", "connection", "sentence"),
    [
        (WITH_DATABASE, None, "[database] connection is not set"),
        (CHANGING, "localhost/cyborg:secret", "is not the URL of a database"),
        (CHANGING, "msql+pymysql://cyborg:secret@localhost/c", "names msql+pymysql, which"),
        (CHANGING, "mysql+oursql://cyborg:secret@localhost/c", "names mysql+oursql, which"),
        (CHANGING, "mysql+mysqlconnector://cyborg:secret@localhost/c", "needs the Python module"),
        (READING, "sqlite:///{}/none/x", "file {}/none/x, which cannot be used"),
        # A text.
        (READING, "sqlite:///{}/cyborg.conf", "file {}/cyborg.conf, which cannot be used"),
        (COMMANDS, "mysql+pymysql://cyborg:secret@127.0.0.1:1/cyborg", "does not answer"),
        (SERVICES, "sqlite:///{}/x", "run `cyborg-dbsync upgrade` first"),
        ([*WITH_DATABASE, "cyborg-ironic forget --all"], "sqlite:///{}/foreign.sqlite", FOREIGN),
    ],
)
def test_a_database_that_cannot_be_used(
    commands: list[str], connection: str | None, sentence: str, write: Write, tmp_path: pathlib.Path
) -> None:
    for command in commands:
        said = stops(command, write(connection and connection.format(tmp_path)))
        assert sentence.format(tmp_path) in said, command
        assert "secret" not in said


def test_the_checks_say_first_what_keeps_them_from_looking(write: Write) -> None:
    status, said, _ = run("cyborg-status check", write(), merged=True)
    assert status == 2
    first, *_rest = said.splitlines()
    assert first == (
        "Not everything could be checked: There is no database: [database] connection is not set."
    )


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
    status, out, err = run(command, write(database_url, transport))
    assert status == 1
    (said,) = err.splitlines()
    assert sentence in said
    assert "Traceback" not in out
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


def test_the_checks_of_the_schema_of_another_program(foreign: str, write: Write) -> None:
    file = write(foreign)
    status, _, err = run("cyborg-status check", file)
    assert status == 2
    assert FOREIGN in err
    assert "dbsync upgrade" not in err
    status, out, _ = run("cyborg-status upgrade check", file)
    assert status == 2
    assert "schema of another program" in " ".join(out.replace("|", " ").split())


def test_the_schema_of_a_newer_release_is_served(database: sa.Engine) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = 'ffff'"))
    revision.check()


def test_an_upgrade_says_what_it_did_and_leaves_nothing_to_migrate(
    tmp_path: pathlib.Path, write: Write
) -> None:
    file = write(f"sqlite:///{tmp_path}/x")
    for before in ("none", schema.head()):
        said = f"The schema is at revision {schema.head()}; it was at {before}.\n"
        assert run("cyborg-dbsync upgrade", file) == (0, said, "")
    status, out, err = run("cyborg-dbsync online_data_migrations --max-count 50", file)
    assert (status, err) == (0, "")
    assert "no data to migrate" in out
