# SPDX-License-Identifier: Apache-2.0
"""Change Placement to what the database says, one host at a time.

Read the wanted and the actual tree, plan, apply, and record how each provider was left. Thanks to
the record, a provider with the same generation need not be read again. If the record is missing,
because this process was killed, the provider is read in full next time.

Placement may carry out a request late: after its answer is given up, or after the process that
sends it was stopped for long. So it is noted before which providers are asked to change, and unless
the answers are there in the end, these are written next time even if they are as wanted. That
raises their generation, and the late request conflicts. As long as it is not raised they stay
noted, whatever Placement answers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field, replace

from oslo_config import cfg
from oslo_context import context as oslo_context
from sqlalchemy import orm

from cyborg import work
from cyborg.placement import adoption, client, desired, tree

LOG = logging.getLogger(__name__)

#: How often a host is read again if others change its providers meanwhile.
MAX_ROUNDS = 5

#: Providers from which on they are written several at a time, and how many then.
_MANY = 8
_AT_ONCE = 4

#: By how much Placement raises the generation of a provider whose inventories it reshapes.
_RESHAPED = 2

Checkpoint = Callable[[], None]


def _by_nobody_else(_session: orm.Session) -> None:
    """No other process has the host."""


def sync_host(
    conf: cfg.ConfigOpts,
    host_name: str,
    checkpoint: Checkpoint,
    hold: desired.Hold = _by_nobody_else,
) -> None:
    """Change the providers below a host's root to what the database says.

    ``checkpoint`` is called before each change, and ``hold`` in each transaction that records some;
    they raise if another process has taken the host.

    :raises work.TryLater: something has to wait: Nova has yet to make the root, a provider still
        has allocations, or Placement refuses a request
    """
    api = client.Client(conf, host_name)
    for _ in range(MAX_ROUNDS):
        state = desired.read(host_name)
        if state is None or not (state.providers or state.records or state.removed):
            return
        if not (state.providers or state.records):
            if not desired.forget(state):
                raise work.TryLater(
                    f"Another host has yet to take over a provider of host {state.name}."
                )
            return
        try:
            deleted = _reconcile(conf, api, state, checkpoint, hold)
        except _Changed:
            LOG.info("The providers of host %s changed meanwhile; reading them again", host_name)
        else:
            if not (state.removed and deleted):
                return
    raise work.TryLater(f"The providers of host {host_name} kept changing while being synced.")


class _Changed(Exception):
    """The providers are not as they were read, and are read again."""


def _reconcile(
    conf: cfg.ConfigOpts,
    api: client.Client,
    state: desired.HostState,
    checkpoint: Checkpoint,
    hold: desired.Hold,
) -> bool:
    """Change the providers; whether some were deleted."""
    listed = api.find_tree(state.root_name)
    if not listed:
        _find_root(conf, api, state, checkpoint)
    actual = _read(api, state, listed)
    # Those that are not below this root may be elsewhere.
    withheld = (uuid for uuid, record in state.records.items() if record.withheld is not None)
    if adoption.take_stock(api, state, {*actual, *withheld}):
        raise _Changed
    wanted = state.below(listed[0].uuid if listed else None)
    unsure = {uuid for uuid, record in state.records.items() if record.unsure}
    detached = state.detached(conf.placement.provider_deletion_delay)
    steps = tree.plan(wanted, actual, state.ours(), unsure, detached)
    asked = {step.uuid for step in steps if tree.sets(step)}
    checkpoint()
    desired.record_intent(state, asked, hold)
    run = _Run(
        api=api,
        state=state,
        unsure=unsure,
        checkpoint=checkpoint,
        seen=dict(actual),
        above_others={each.parent_uuid for each in listed if each.uuid not in actual},
    )
    try:
        run.apply(steps)
    finally:
        # Also of those that were done when one of them failed.
        checkpoint()
        answered = {uuid: run.seen[uuid] for uuid in run.seen.keys() - run.unanswered}
        still = {
            uuid
            for uuid in unsure
            if uuid not in answered
            or actual.get(uuid, answered[uuid]).generation == answered[uuid].generation
        }
        desired.record(state, answered, run.deleted, asked, still, hold)
    if run.conflicts:
        raise _Changed
    if run.failures:
        raise work.TryLater(" ".join(run.failures))
    return bool(run.deleted)


def _read(
    api: client.Client, state: desired.HostState, listed: Sequence[client.ListedProvider]
) -> dict[str, tree.Provider]:
    """The providers of the host, each read only if its generation has changed or is not known."""
    try:
        return {
            found.uuid: state.as_left(found) or api.read_provider(found)
            for found in listed
            if found.uuid in state.records or found.uuid in state.providers
        }
    except (client.GenerationConflict, client.NoSuchProvider) as exc:
        raise _Changed from exc


def _find_root(
    conf: cfg.ConfigOpts, api: client.Client, state: desired.HostState, checkpoint: Checkpoint
) -> None:
    """Find the root that is not there under another name, or make it if the host needs it."""
    if state.root_name.startswith(f"{state.name}.") and api.find_tree(state.name):
        # It has the host's name, though its agent says that with a domain.
        desired.set_node(state, state.name)
        raise _Changed
    if not state.providers:
        return
    if not conf.placement.create_root_provider:
        raise work.TryLater(
            f"Placement has no root provider {state.root_name} yet; nova-compute of that node "
            "makes it.",
            work.NO_ROOT,
        )
    checkpoint()
    api.create_provider(state.root_name, None, None)
    LOG.info("Created root provider %s", state.root_name)
    raise _Changed


@dataclass(slots=True, kw_only=True)
class _Run:
    """Applies one plan. A provider that fails does not stop the others."""

    api: client.Client
    state: desired.HostState
    unsure: Collection[str]
    checkpoint: Checkpoint
    #: The providers as they are now.
    seen: dict[str, tree.Provider]
    #: Providers below which others have made some.
    above_others: Collection[str | None]
    #: Those about which a request may still be carried out.
    unanswered: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    conflicts: bool = False
    #: Inventories that new providers are still to offer; None if each offers them at once.
    offers: list[tree.SetInventories] | None = None

    def apply(self, steps: Sequence[tree.Step]) -> None:
        """Take the steps: those of one provider in order, and after those of its parent."""
        groups = [list(group) for _, group in itertools.groupby(steps, key=lambda s: s.uuid)]
        leaving = [
            group
            for group in groups
            if isinstance(group[0], tree.DetachProvider | tree.DeleteProvider)
        ]
        changing = {group[0].uuid: group for group in groups if group not in leaving}
        made = sum(isinstance(group[0], tree.CreateProvider) for group in changing.values())
        self.offers = [] if made >= _MANY else None
        for step in steps:
            if isinstance(step, tree.CreateProvider | tree.UpdateProvider):
                self._free_name(step)
        for wave in self._waves(changing):
            self._take_groups(wave)
        self._offer()
        for group in leaving:
            self._take_group(group)

    def _free_name(self, step: tree.CreateProvider | tree.UpdateProvider) -> None:
        """Call another provider of ours by its uuid that has the name: cards may change places."""
        for found in list(self.seen.values()):
            if found.name == step.name and found.uuid != step.uuid:
                self._try(tree.UpdateProvider(
                    uuid=found.uuid, name=found.uuid, parent_uuid=found.parent_uuid
                ))

    def _waves(self, groups: Mapping[str, list[tree.Step]]) -> Iterable[list[list[tree.Step]]]:
        """The groups of steps, those of children behind those of their parents."""
        depths: dict[str, int] = {}
        waves: dict[int, list[list[tree.Step]]] = {}
        # A plan names parents first.
        for uuid, group in groups.items():
            depths[uuid] = depths.get(self.state.providers[uuid].parent_uuid or "", -1) + 1
            waves.setdefault(depths[uuid], []).append(group)
        return waves.values()

    def _take_groups(self, groups: Sequence[list[tree.Step]]) -> None:
        if len(groups) < _MANY:
            for group in groups:
                self._take_group(group)
            return
        current = oslo_context.get_current()
        pool = futures.ThreadPoolExecutor(
            _AT_ONCE, "placement", current.update_store if current else None
        )
        try:
            for done in [pool.submit(self._take_group, group) for group in groups]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _take_group(self, steps: Sequence[tree.Step]) -> None:
        """Take the steps of one provider, up to one that fails.

        What a new provider offers is left for :meth:`_offer`, if they are many.
        """
        if not all(isinstance(step, tree.UpdateProvider) for step in steps):
            self._warn_of_drift(steps[0].uuid)
        waiting = self.offers if isinstance(steps[0], tree.CreateProvider) else None
        for step in steps:
            is_last = step is steps[-1]
            if waiting is not None and is_last and isinstance(step, tree.SetInventories):
                waiting.append(step)
            elif not self._try(step):
                return

    def _try(self, step: tree.Step) -> bool:
        """Take a step; whether the next one of the provider may follow."""
        self.checkpoint()
        try:
            self._take(step)
        except (client.GenerationConflict, client.NoSuchProvider):
            self.conflicts = True
            return False
        except client.RequestRefused as exc:
            self._fail(step.uuid, str(exc))
            return False
        except Exception:
            self.unanswered.add(step.uuid)
            raise
        return True

    def _offer(self) -> None:
        """Let the new providers offer what they have, all at once if Placement does that."""
        if not (self.offers and self._reshape(self.offers)):
            for step in self.offers or ():
                self._try(step)

    def _reshape(self, steps: Sequence[tree.SetInventories]) -> bool:
        wanted = [replace(self.seen[s.uuid], inventories=s.inventories) for s in steps]
        self.checkpoint()
        uuids = {step.uuid for step in steps}
        self.unanswered |= uuids
        try:
            is_done = self.api.reshape(wanted)
        except client.RequestRefused as exc:
            LOG.info("Placement refused the inventories of %d providers: %s", len(steps), exc)
            is_done = False
        if not is_done:
            self.unanswered -= uuids
            return False
        # It says nothing of generations. One that others have raised too is not that of what we
        # have written; the one before makes the provider be read again.
        listed = {found.uuid: found for found in self.api.find_tree(self.state.root_name)}
        for provider in wanted:
            found = listed.get(provider.uuid)
            if found is not None and found.generation == provider.generation:
                raise client.PlacementError(
                    f"Placement said yes to POST /reshaper and has not changed {provider.name}"
                )
            ours = provider.generation + _RESHAPED
            known = ours if found is not None and found.generation == ours else provider.generation
            self.seen[provider.uuid] = replace(provider, generation=known)
        self.unanswered -= uuids
        LOG.info("%d new providers of host %s have their inventories", len(steps), self.state.name)
        return True

    def _warn_of_drift(self, uuid: str) -> None:
        """Log it if somebody else has changed a provider that should be as we left it."""
        wanted, record = self.state.providers.get(uuid), self.state.records.get(uuid)
        if wanted is None or record is None or record.unsure:
            return
        if record.has(wanted):
            LOG.warning("Provider %s is not as it was left; putting it right", wanted.name)

    def _fail(self, uuid: str, reason: str) -> None:
        known = self.state.providers.get(uuid) or self.state.records[uuid]
        self.failures.append(f"Provider {known.name}: {reason}.")

    def _take(self, step: tree.Step) -> None:
        match step:
            case tree.CreateProvider():
                self._create(step)
            case tree.UpdateProvider():
                self.api.place_provider(step.uuid, step.name, step.parent_uuid)
                # Placement does not count this as a change, so the generation stays.
                found = self.seen[step.uuid]
                self.seen[step.uuid] = replace(found, name=step.name, parent_uuid=step.parent_uuid)
                LOG.info("Gave provider %s its name and parent: %s", step.uuid, step.name)
            case tree.SetTraits():
                found = self.seen[step.uuid]
                generation = self.api.set_traits(step.uuid, step.traits, found.generation)
                self.seen[step.uuid] = replace(found, traits=step.traits, generation=generation)
                said = ", ".join(sorted(step.traits))
                LOG.info("Provider %s has traits %s", found.name, said or "none")
            case tree.SetInventories():
                self._set_inventories(step)
            case tree.DetachProvider():
                self._detach(step.uuid)
            case tree.DeleteProvider():
                self._delete(step.uuid)

    def _create(self, step: tree.CreateProvider) -> None:
        try:
            generation = self.api.create_provider(step.name, step.uuid, step.parent_uuid)
        except client.AlreadyExists:
            self._adopt(step)
            return
        self.seen[step.uuid] = tree.Provider(
            uuid=step.uuid, name=step.name, parent_uuid=step.parent_uuid, generation=generation
        )
        LOG.info("Created provider %s (%s)", step.name, step.uuid)

    def _adopt(self, step: tree.CreateProvider) -> None:
        """Move a provider here that was made already, perhaps below another root."""
        found = self.api.find_provider(step.uuid)
        if found is None:
            raise client.AlreadyExists("another provider, which Cyborg did not make, has its name")
        # Its row may be of an attempt that ended before anybody looked.
        adoption.take_stock(self.api, self.state, [step.uuid], unwritten=True)
        self.api.place_provider(step.uuid, step.name, step.parent_uuid)
        LOG.info("Provider %s existed already; moved it below its root", step.name)
        raise client.GenerationConflict("the provider must be read first")

    def _set_inventories(self, step: tree.SetInventories) -> None:
        found = self.seen[step.uuid]
        try:
            self._write(found, step.inventories)
        except client.InUse as exc:
            retained = tree.retaining(step.inventories, found.inventories)
            # Allocations may stay for long; an earlier request must not be minded until they go.
            if retained != found.inventories or step.uuid in self.unsure:
                self._write(found, retained)
            self._fail(step.uuid, f"kept withdrawn what is still allocated ({exc})")

    def _detach(self, uuid: str) -> None:
        found = self.seen.get(uuid)
        if found is None:
            listed = self.api.find_provider(uuid)
            if listed is None:
                LOG.info("Provider %s was deleted already", uuid)
                self.deleted.add(uuid)
                return
            found = self.seen[uuid] = self.api.read_provider(listed)
        if uuid in self.above_others:
            self._withdraw(found, "others have made providers below it")
            return
        try:
            if found.inventories:
                self._write(found, {})
        except client.InUse as exc:
            self._withdraw(found, str(exc))
            return
        # Its name may be another device's by now.
        self.api.place_provider(uuid, uuid, None)
        self.seen[uuid] = replace(self.seen[uuid], name=uuid, parent_uuid=None)
        LOG.info("Took provider %s (%s) out of the host's tree", found.name, uuid)

    def _withdraw(self, found: tree.Provider, reason: str) -> None:
        withdrawn = tree.withdrawn(found.inventories, self.state.records[found.uuid].ours)
        if withdrawn != found.inventories:
            self._write(found, withdrawn)
        self._fail(found.uuid, f"withdrawn until it can be deleted ({reason})")

    def _delete(self, uuid: str) -> None:
        try:
            self.api.delete_provider(uuid)
        except client.NoSuchProvider:
            LOG.info("Provider %s was deleted already", uuid)
        else:
            LOG.info("Deleted provider %s", uuid)
        self.deleted.add(uuid)

    def _write(self, found: tree.Provider, inventories: tree.Inventories) -> None:
        generation = self.api.set_inventories(found.uuid, inventories, found.generation)
        self.seen[found.uuid] = replace(found, inventories=inventories, generation=generation)
        offered = ((name, inv.total - inv.reserved) for name, inv in sorted(inventories.items()))
        said = ", ".join(f"{amount} of {name}" for name, amount in offered)
        LOG.info("Provider %s offers %s", found.name, said or "nothing")
