# SPDX-License-Identifier: Apache-2.0
"""Hosts and conductors sign what they say, and take nothing that the other one has not signed."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import pathlib
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as messaging
import pytest
import sqlalchemy as sa
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519
from oslo_config import cfg

from cyborg import db, host_keys, liveness, rpc
from cyborg.agent import host_signer
from cyborg.common import errors
from cyborg.conductor import deployment_signer
from cyborg.db import locks, models
from cyborg.rpc import signers, signing
from cyborg.tests import engine, full_payloads, hosts, messages, signed
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.hostile_host import refusals
from cyborg.tests.mounted_api import Api
from cyborg.tests.signed import HOST, PATIENCE

pytestmark = pytest.mark.usefixtures("database")

MINUTE = 60_000


@pytest.fixture
def steps(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> Iterator[signed.Steps]:
    """A conductor and the agent of host-1, which both need signatures."""
    signed.require(conf, tmp_path)
    with messages.transport(conf, "memory"), signed.serving(conf) as done:
        yield done


@pytest.fixture
def own(conf: cfg.ConfigOpts, steps: signed.Steps) -> host_signer.HostSigner:
    """The keys of host-1, whose first one is enrolled."""
    mine = host_signer.HostSigner(conf)
    host_keys.enrol(HOST, mine.public())
    return mine


@pytest.fixture
def ours(conf: cfg.ConfigOpts, steps: signed.Steps) -> deployment_signer.DeploymentSigner:
    return deployment_signer.DeploymentSigner(conf)


def errors_of_host() -> dict[str, str]:
    return hosts.errors_of(HOST)


def order() -> dict[str, Any]:
    return {"step": full_payloads.step().to_wire(), "wait": PATIENCE}


def told() -> signing.Said:
    return signing.Said(HOST, "host_step", order())


def reported() -> signing.Said:
    return signing.Said(HOST, "report", {"report": hosts.report(hosts.card("a")).to_wire()})


def test_a_host_is_believed_nothing_before_its_key_is_enrolled_and_then_everything(
    conf: cfg.ConfigOpts, steps: signed.Steps
) -> None:
    report = hosts.report(hosts.card("a"))
    with pytest.raises(rpc.ReportFailed, match="cyborg-status host enroll host-1 KEY"):
        rpc.report(conf, report)
    assert hosts.deployables() == []
    host_keys.enrol(HOST, host_signer.HostSigner(conf).public())
    rpc.report(conf, report)
    assert len(hosts.deployables()) == 1
    again = dataclasses.replace(report, counter=report.counter + 1)
    assert rpc.report_unchanged(conf, again.unchanged())
    with pytest.raises(rpc.WriteRefused, match="has ended"):
        rpc.permit_write(conf, full_payloads.write_request())
    rpc.run_host_step(conf, HOST, full_payloads.step(), PATIENCE)
    rpc.run_program(conf, HOST, full_payloads.program_step(), PATIENCE)
    assert steps.done == ["prepare", "program"]
    assert errors_of_host() == {}


def test_without_the_option_only_hosts_with_a_key_need_to_sign(
    conf: cfg.ConfigOpts, steps: signed.Steps
) -> None:
    conf.set_override("require_host_keys", False, group="agent")
    said = reported()
    assert "failed" not in signed.ask(conf, "report", said.body)
    host_keys.enrol(HOST, host_signer.HostSigner(conf).public())
    answer = signed.ask(conf, "report", reported().body)
    assert answer["failed"] == "The message is not signed."
    assert errors_of_host()["refused-messages"].endswith("The message is not signed.")
    rpc.report(conf, hosts.report(hosts.card("a")))
    # An agent takes orders of conductors that do not sign yet.
    signed.ask(conf, "host_step", order(), host=HOST)
    assert steps.done == ["prepare"]


def test_neither_has_a_key(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> None:
    conf.set_override("state_path", "/proc/none")
    with messages.transport(conf, "memory"), signed.serving(conf) as steps:
        rpc.report(conf, hosts.report(hosts.card("a")))
        rpc.run_host_step(conf, HOST, full_payloads.step(), PATIENCE)
    assert steps.done == ["prepare"]


Change = Callable[[dict[str, Any]], object]
FALSE: dict[str, tuple[Change, str]] = {
    "none": (lambda _one: None, "not signed"),
    "a text": (lambda _one: "signed", "cannot be read"),
    "a list": (lambda _one: [], "cannot be read"),
    "nothing in it": (lambda _one: {}, "cannot be read"),
    "a counter that is none": (lambda one: one | {"counter": "7"}, "no counter"),
    "a counter below 0": (lambda one: one | {"counter": -1}, "no counter"),
    "a counter that no column has": (lambda one: one | {"counter": 2**63}, "no counter"),
    "true for a counter": (lambda one: one | {"counter": True}, "no counter"),
    "a time that is none": (lambda one: one | {"time_ms": 1.5}, "no counter or time"),
    "a key that is none": (lambda one: one | {"key": 7}, "no key"),
    "a long key": (lambda one: one | {"key": "a" * 9999}, "no key"),
    "a key that is another line of the log": (lambda one: one | {"key": "a\nERROR"}, "no key"),
    "another key": (lambda one: one | {"key": "0" * 64}, "Key 00000000"),
    "a value that is none": (lambda one: one | {"value": "§"}, "not that of this message"),
    "another value": (lambda one: one | {"value": "AAAA"}, "not that of this message"),
    "a higher counter": (
        lambda one: one | {"counter": one["counter"] + 1},
        "not that of this message",
    ),
    "a later time": (lambda one: one | {"time_ms": one["time_ms"] + 1}, "not that of this message"),
}


@pytest.mark.parametrize("what", ["report", "host_step"])
def test_false_signatures_and_true_ones_a_second_time(
    conf: cfg.ConfigOpts,
    own: host_signer.HostSigner,
    ours: deployment_signer.DeploymentSigner,
    steps: signed.Steps,
    what: str,
) -> None:
    """Of a host, and of a conductor."""
    is_report = what == "report"
    said = reported() if is_report else told()

    def sign(other: signing.Said = said) -> dict[str, Any]:
        signature = (own if is_report else ours).sign(other)
        assert signature is not None
        return signature.to_wire()

    def send(wire: Any) -> str:
        """What is said of it, if it is refused."""
        before = refusals()
        answer = signed.ask(conf, what, said.body, wire, host=None if is_report else HOST)
        sentence: str = (answer or {}).get("failed" if is_report else "running", "")
        assert refusals() == before + bool(sentence), sentence
        return sentence

    true = sign()
    for name, (change, sentence) in FALSE.items():
        assert sentence in send(change(true)), name
    for other in (
        dataclasses.replace(said, host="host-2"),
        dataclasses.replace(said, method="program"),
        dataclasses.replace(said, body={**said.body, "wait": 1}),
    ):
        assert "not that of this message" in send(sign(other)), other
    assert (hosts.deployables(), steps.done) == ([], [])
    # The true message is good still, and once.
    assert send(true) == ""
    for _ in range(2):
        assert "was taken already" in send(true)
    assert (len(hosts.deployables()), steps.done) == ((1, []) if is_report else (0, ["prepare"]))
    if is_report:
        assert "was taken already" in errors_of_host()["refused-messages"]


def test_what_one_agent_has_taken_the_next_does_not_take(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner
) -> None:
    signature = signers.sign(rpc.CONDUCTOR, told())
    host_signer.HostSigner(conf).check(told(), signature)
    with pytest.raises(signing.MessageRefused, match="was taken already"):
        host_signer.HostSigner(conf).check(told(), signature)


def test_devices_that_are_gone_go_in_spite_of_a_forged_message(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner
) -> None:
    conf.set_override("max_gone_share", 0.5, group="conductor")
    cards = [hosts.card(name) for name in "abcdefgh"]
    rpc.report(conf, hosts.report(*cards))
    rpc.report(conf, hosts.report(cards[0]))
    assert len(hosts.deployables()) == 8
    held = errors_of_host()["cyborg-conductor"]
    signed.ask(conf, "report", reported().body)
    assert errors_of_host()["cyborg-conductor"] == held
    rpc.report(conf, hosts.report(cards[0]))
    assert len(hosts.deployables()) == 1
    assert errors_of_host().keys() == {"refused-messages"}


def test_a_refusal_is_one_if_it_cannot_be_stored(
    conf: cfg.ConfigOpts,
    own: host_signer.HostSigner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(liveness, "note_refusal", lambda *_, **__: 1 / 0)
    before = refusals()
    assert signed.ask(conf, "report", reported().body)["failed"] == "The message is not signed."
    assert refusals() == before + 1
    assert "Refused message 'report' of host 'host-1'" in caplog.text


def test_a_refusal_that_is_shown_already_waits_for_no_lock(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner
) -> None:
    rpc.report(conf, hosts.report(hosts.card("a")))
    signed.ask(conf, "report", reported().body)
    shown = errors_of_host()
    locked = sa.select(models.Host).where(models.Host.name == HOST).with_for_update()
    with db.writer() as session:
        session.scalars(locked).one()
        assert signed.ask(conf, "report", reported().body)["failed"]
    assert errors_of_host() == shown


def test_a_forger_with_many_sentences_has_no_more_written_than_one_with_one(
    conf: cfg.ConfigOpts,
    own: host_signer.HostSigner,
    count_sql: Callable[[], contextlib.AbstractContextManager[SqlCounter]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = reported()
    signature = signers.sign(rpc.HOST, said)
    assert signature is not None

    def forge(numbers: range) -> None:
        for number in numbers:
            signed.ask(conf, "report", said.body, signature | {"key": f"{number:064x}"[::-1]})

    for turn in range(2):
        rpc.report(conf, hosts.report(hosts.card("a")))
        # What was refused before is forgotten by now.
        hosts.let_pass(3600)
        with count_sql() as counter:
            forge(range(1, 20))
        assert len(counter.matching("UPDATE")) == 1, turn
        assert "Key 10000000 is not enrolled" in errors_of_host()["refused-messages"]
    monkeypatch.setattr(deployment_signer, "_NOTED_AGAIN", 0)
    forge(range(5, 6))
    assert "Key 50000000 is not enrolled" in errors_of_host()["refused-messages"]


def test_messages_of_a_host_may_overtake_each_other(own: host_signer.HostSigner) -> None:
    said = reported()
    made = [own.sign(said) for _ in range(70)]
    wire = [each.to_wire() for each in made if each is not None]
    for one in (wire[69], wire[7], wire[68], wire[8]):
        host_keys.check(said, one, required=True)
    # The last one is so old that it may have been there.
    for one in (wire[69], wire[7], wire[68], wire[8], wire[6]):
        with pytest.raises(signing.MessageRefused, match="was taken already"):
            host_keys.check(said, one, required=True)
    host_keys.check(said, wire[67], required=True)


def test_false_orders_do_not_make_messages_of_the_host_look_old(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner, steps: signed.Steps
) -> None:
    said = reported()
    early = signers.sign(rpc.HOST, said)
    for false in [None, "", {"key": "false"}] * 70:
        assert "running" in signed.ask(conf, "host_step", order(), false, host=HOST)
    host_keys.check(said, signers.sign(rpc.HOST, said), required=True)
    host_keys.check(said, early, required=True)
    # Nor do answers that are taken.
    for _ in range(2):
        rpc.run_host_step(conf, HOST, full_payloads.step(), PATIENCE)
    assert steps.done == ["prepare"] * 2


def test_a_clock_that_is_off(
    conf: cfg.ConfigOpts,
    own: host_signer.HostSigner,
    steps: signed.Steps,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Conductors and agents read the same clock here, and the database has its own.
    true, ours = time.time_ns, deployment_signer.DeploymentSigner(conf)
    for off, word in ((-6 * MINUTE, "old"), (2 * MINUTE, "ahead")):
        with monkeypatch.context() as clock:
            clock.setattr(time, "time_ns", lambda off=off: true() + off * 1_000_000)
            with pytest.raises(rpc.ReportFailed, match=f"seconds {word}"):
                rpc.report(conf, hosts.report(hosts.card("a")))
            signature = ours.sign(told())
        assert signature is not None
        answer = signed.ask(conf, "host_step", order(), signature.to_wire(), host=HOST)
        assert "set the clocks" in answer["running"]
    assert steps.done == []


def test_the_counter_goes_on_in_the_next_agent(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, counters = reported(), []
    stored = pathlib.Path(conf.state_path, "keys", "counter")
    hour_ago = time.time_ns() - 3600 * 10**9

    def sign() -> None:
        signature = host_signer.HostSigner(conf).sign(said)
        assert signature is not None
        counters.append(signature.counter)

    sign()
    sign()
    # The clock was set back.
    with monkeypatch.context() as clock:
        clock.setattr(time, "time_ns", lambda: hour_ago)
        sign()
    for content in (None, "", "seven"):
        stored.unlink() if content is None else stored.write_text(content)
        time.sleep(0.01)
        sign()
    assert counters == sorted(set(counters))


def test_a_host_changes_its_key_without_a_gap(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner
) -> None:
    def works() -> None:
        rpc.report(conf, hosts.report(hosts.card("a")))

    works()
    with pytest.raises(errors.Misconfigured, match="cyborg-agent key --next"):
        own.switch()
    following = own.public("next")
    works()
    host_keys.enrol(HOST, following)
    works()
    former = own.public()
    assert own.switch() == following
    works()
    host_keys.revoke(HOST, signing.fingerprint(former))
    works()
    third = own.public("next")
    # Nobody else on the host can read them.
    folder = pathlib.Path(conf.state_path, "keys")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    files = dict.fromkeys(("host.pem", "next.pem", "counter"), 0o600)
    assert modes == {"keys": 0o700, **files}
    taken = engine.times_taken(locks.HOST_KEYS)
    host_keys.enrol(HOST, third)
    # On another node of a Galera cluster nobody else adds one at the same time.
    assert engine.times_taken(locks.HOST_KEYS) == taken + 1
    with pytest.raises(errors.Conflict, match="has 2 keys; revoke"):
        host_keys.enrol(HOST, signed.new_key(pathlib.Path(conf.state_path, "other.pem")))
    with pytest.raises(errors.Conflict, match="was revoked"):
        host_keys.enrol(HOST, former)


def test_conductors_change_their_key_without_a_gap(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner, steps: signed.Steps, tmp_path: pathlib.Path
) -> None:
    former = list(conf.agent.conductor_public_keys)
    following = signed.new_key(tmp_path / "next.pem")
    conf.set_override("conductor_public_keys", [*former, following], group="agent")
    rpc.run_host_step(conf, HOST, full_payloads.step(), PATIENCE)
    conf.set_override("signing_key_file", str(tmp_path / "next.pem"), group="conductor")
    rpc.run_host_step(conf, HOST, full_payloads.step(), PATIENCE)
    conf.set_override("conductor_public_keys", [following], group="agent")
    rpc.run_host_step(conf, HOST, full_payloads.step(), PATIENCE)
    conf.set_override("conductor_public_keys", former, group="agent")
    with pytest.raises(rpc.HostUnreachable, match="conductor_public_keys of host host-1"):
        rpc.run_host_step(conf, HOST, full_payloads.step(), PATIENCE)
    assert steps.done == ["prepare"] * 3


@pytest.mark.parametrize("required", [True, False])
def test_a_host_that_is_revoked_is_believed_nothing(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner, *, required: bool
) -> None:
    conf.set_override("require_host_keys", required, group="agent")
    rpc.report(conf, hosts.report(hosts.card("a")))
    host_keys.revoke(HOST)
    with pytest.raises(rpc.ReportFailed, match="is revoked"):
        rpc.report(conf, hosts.report())
    with pytest.raises(rpc.NoPermit, match="is revoked"):
        rpc.permit_write(conf, dataclasses.replace(full_payloads.write_request(), host=HOST))
    with pytest.raises(rpc.HostUnreachable, match="is revoked"):
        rpc.run_host_step(conf, HOST, full_payloads.step(), PATIENCE)
    answer = signed.ask(conf, "report", reported().body)
    assert answer["failed"] == "The message is not signed."
    assert len(hosts.deployables()) == 1
    assert "refused-messages" in errors_of_host()


RSA = "MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAK4Q"


def test_the_keys_of_a_host_that_is_unknown(conf: cfg.ConfigOpts) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    api = Api(conf)
    path, version = f"/v2/hosts/{HOST}/keys", "2.4"
    answer = api.ask("GET", path, version=version)
    assert (answer.status_code, HOST in answer.text) == (404, True)
    # It may have a node and no key, or a key before it reports.
    with db.writer() as session:
        session.add(models.Host(name="host-2", node="host-2", audited_ms=0))
    assert api.ask("GET", "/v2/hosts/host-2/keys", version=version).json == {"keys": []}
    host_keys.enrol(HOST, signing.public_text(ed25519.Ed25519PrivateKey.generate()))
    assert len(api.ask("GET", path, version=version).json["keys"]) == 1


def test_what_cannot_be_enrolled_or_revoked() -> None:
    for text in ("", "x", "§", RSA, "A" * 60, "A" * 44):
        with pytest.raises(errors.Invalid, match="public_key: this is no Ed25519 public key"):
            host_keys.enrol(HOST, text)
    good = signing.public_text(ed25519.Ed25519PrivateKey.generate())
    for name in ("", "a b", "evil\nhost"):
        with pytest.raises(errors.Invalid, match="is not a valid host name"):
            host_keys.enrol(name, good)
    with pytest.raises(errors.NotFound):
        host_keys.list_keys(HOST)
    for _ in range(2):
        assert host_keys.enrol(HOST, good).host_name == HOST
    with pytest.raises(errors.Conflict, match="the key of host host-1"):
        host_keys.enrol("host-2", good)
    with pytest.raises(errors.NotFound, match="Host host-2 has no key"):
        host_keys.revoke("host-2")
    with pytest.raises(errors.NotFound, match="has no key 00"):
        host_keys.revoke(HOST, "00")


PRIME = 2**255 - 19
#: One of four points of order 8 has this y, as the lists of such points say (libsodium has one).
ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
#: The y of the eight points whose order divides 8: of one each of order 1 and 2, of two of order 4,
#: and of four of order 8.
WEAK = (1, PRIME - 1, 0, ORDER_8, PRIME - ORDER_8)


def written(x_is_odd: int, y: int) -> str:
    """A public key with that point, whether it is one or not."""
    head = bytes.fromhex("302a300506032b6570032100")
    return base64.b64encode(head + (y | x_is_odd << 255).to_bytes(32, "little")).decode()


def is_forged(y: int) -> bool:
    """Whether a signature that needs no private key is one of some message."""
    key = ed25519.Ed25519PublicKey.from_public_bytes(y.to_bytes(32, "little"))
    for number in range(200):
        with contextlib.suppress(InvalidSignature):
            key.verify(b"\1".ljust(64, b"\0"), b"%d" % number)
            return True
    return False


def test_a_key_for_which_anybody_can_sign_is_refused() -> None:
    for y in WEAK:
        assert is_forged(y)
        for sign in (0, 1):
            with pytest.raises(errors.Invalid, match="public_key: anybody can sign for this key"):
                host_keys.enrol(HOST, written(sign, y))
    # A point written in another way is the same one under another fingerprint.
    for y in range(PRIME, 2**255):
        for sign in (0, 1):
            with pytest.raises(errors.Invalid, match="public_key"):
                host_keys.enrol(HOST, written(sign, y))
    with pytest.raises(errors.NotFound):
        host_keys.list_keys(HOST)
    for _ in range(2):
        host_keys.enrol(HOST, signing.public_text(ed25519.Ed25519PrivateKey.generate()))


@pytest.mark.parametrize("required", [True, False])
def test_a_name_that_no_host_has(
    conf: cfg.ConfigOpts, steps: signed.Steps, caplog: pytest.LogCaptureFixture, *, required: bool
) -> None:
    conf.set_override("require_host_keys", required, group="agent")
    for name in ("a\nERROR all hosts are lost", "\0", "a b", "", "a" * 256):
        caplog.clear()
        wire = dataclasses.replace(hosts.report(hosts.card("a")), host=name).to_wire()
        before = refusals()
        answer = signed.ask(conf, "report", {"report": wire})
        assert answer["failed"] == "The message names no host.", name
        assert refusals() == before + 1, name
        said = [each.getMessage() for each in caplog.records if each.name.startswith("cyborg.")]
        assert said, name
        assert not any({"\n", "\0"} & set(each) for each in said), name
    assert hosts.deployables() == []


def test_drafts_of_keys_that_are_left_over_are_removed(
    conf: cfg.ConfigOpts, tmp_path: pathlib.Path
) -> None:
    conf.set_override("state_path", str(tmp_path / "state"))
    folder = tmp_path / "state" / "keys"
    folder.mkdir(parents=True)
    # One of them belongs to a process that makes the key now.
    old, new = folder / "host.pem.1.new", folder / "host.pem.2.new"
    for draft in (old, new):
        draft.write_bytes(signing.make_private())
    os.utime(old, (0, 0))
    host_signer.HostSigner(conf).public()
    assert sorted(path.name for path in folder.iterdir()) == ["host.pem", new.name]


def test_answers_that_are_not_those_of_the_host(
    conf: cfg.ConfigOpts, own: host_signer.HostSigner, steps: signed.Steps
) -> None:
    rpc.report(conf, hosts.report(hosts.card("a")))
    host_keys.enrol("host-2", signed.new_key(pathlib.Path(conf.state_path, "other.pem")))
    done = {"function": None, "verified_by": "none", "report_counter": 1}
    earlier = own.sign(signing.answer_to(told(), None, {}))
    assert earlier is not None
    # No agent of that host is there.
    with signed.answering(conf, "host-2") as agent:
        for false in (done, done | {"signature": earlier.to_wire()}, done | {"signature": "true"}):
            agent.answer, before = false, refusals()
            with pytest.raises(rpc.HostUnreachable, match="the answer of the agent of host host-2"):
                rpc.run_host_step(conf, "host-2", full_payloads.step(), PATIENCE)
            with pytest.raises(rpc.HostUnreachable, match="is refused"):
                rpc.run_program(conf, "host-2", full_payloads.program_step(), PATIENCE)
            assert refusals() == before + 2
    assert steps.done == []


@pytest.mark.services
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("enrolled", [True, False])
def test_failures_have_no_signature_and_so_are_no_answer(
    conf: cfg.ConfigOpts, tmp_path: pathlib.Path, *, enrolled: bool, required: bool
) -> None:
    signed.require(conf, tmp_path)
    conf.set_override("require_host_keys", required, group="agent")
    if enrolled:
        host_keys.enrol("host-2", signed.new_key(tmp_path / "other.pem"))
    step, program = full_payloads.step(), full_payloads.program_step()
    believed = not (enrolled or required)
    step_error = rpc.HostStepFailed if believed else rpc.HostUnreachable
    program_error = rpc.ProgramFailed if believed else rpc.HostUnreachable
    answers: list[object] = [messaging.UnsupportedVersion("2.9"), errors.Conflict("no")]
    answers += ["done", [], None]
    with messages.transport(conf, "rabbitmq"), signed.answering(conf, "host-2") as agent:
        rpc.use_signer(rpc.CONDUCTOR, deployment_signer.DeploymentSigner(conf))
        try:
            for agent.answer in answers:
                with pytest.raises(step_error) as failed:
                    rpc.run_host_step(conf, "host-2", step, PATIENCE)
                with pytest.raises(program_error) as other:
                    rpc.run_program(conf, "host-2", program, PATIENCE)
                refused = "the answer of the agent of host host-2 is refused"
                said = [refused in str(each.value) for each in (failed, other)]
                assert said == [not believed] * 2, repr(agent.answer)
        finally:
            rpc.use_signer(rpc.CONDUCTOR, None)
