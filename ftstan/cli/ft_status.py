"""``ftstanctl ft status``: a group's members and a verdict, over NATS or from storage alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ftstan.base.errors import NatsError
from ftstan.base.states import NodeState
from ftstan.cli.ft_group import Group, with_group
from ftstan.cli.terminal import Styled, print_json, print_table, say, say_styled, time_of
from ftstan.cli.watching import shown
from ftstan.ft.health import GroupVerdict, Health, judge, silent_holder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ftstan.base.states import NodeStatus
    from ftstan.ft.epoch_records import EpochRecord

_SILENT_S = 3.0
"""From here on the age of the last answer of storage is worth a note."""
_COLOURS = {
    Health.HEALTHY: "bold green",
    Health.DEGRADED: "bold yellow",
    Health.UNSERVED: "bold red",
}

_HEADS = ("member", "role", "host", "epoch", "lag", "note")
_WIDE_HEADS = (
    "member",
    "server",
    "host",
    "pid",
    "state",
    "phase",
    "epoch",
    "probe",
    "holder",
    "store",
    "lag",
    "mixed",
    "version",
    "note",
)


def status(arguments: argparse.Namespace) -> int:
    """Show the group once, or again and again with ``--watch``. Raises ``FtstanError``."""
    return shown(_from_storage if arguments.dir else _over_nats, arguments)


# ---- over NATS
# --------------------------------------------------------------------------------------------------


def _over_nats(arguments: argparse.Namespace) -> int:
    def work(group: Group) -> int:
        expect = arguments.expect
        # A healthy group that has told all of it at once need not be waited for any longer. Who
        # counts on a number of members says so.
        members = group.expected(expect) if expect else group.members(complete=_is_healthy)
        verdict = judge(members, expect)
        if not members and (others := group.others()):
            verdict = GroupVerdict(verdict.health, (*verdict.problems, others))
        if verdict.health is Health.UNSERVED and (holder := silent_holder(members)):
            told = f"{holder} does not answer"
            first, *rest = verdict.problems
            verdict = GroupVerdict(verdict.health, (first, told, *rest))
        if arguments.output == "json":
            print_json(
                {
                    "cluster": group.cluster,
                    "group": group.name,
                    "health": verdict.health.name.lower(),
                    "problems": list(verdict.problems),
                    "nodes": [member.to_json() for member in members],
                }
            )
            return int(verdict.health)
        if members:
            _print_wide(members) if arguments.wide else _print_members(members)
        return _say_verdict(verdict)

    try:
        return with_group(arguments, work)
    except NatsError as error:
        raise NatsError(
            error.text, hint=f"{error.hint}; --dir DATASTORE looks at the datastore instead"
        ) from error


def _is_healthy(members: Sequence[NodeStatus]) -> bool:
    return judge(members).health is Health.HEALTHY


def _say_verdict(verdict: GroupVerdict) -> int:
    line = ": ".join(filter(None, [verdict.health.name.lower(), "; ".join(verdict.problems)]))
    say_styled(line, _COLOURS[verdict.health])
    return int(verdict.health)


def _print_members(members: Sequence[NodeStatus]) -> None:
    versions = {node.version for node in members}
    rows = [
        (
            node.called,
            _role(node),
            node.host or "-",
            node.epoch or "-",
            "-" if node.warm_lag is None else f"{node.warm_lag.messages} msgs",
            _note(node, versions),
        )
        for node in members
    ]
    print_table(_HEADS, rows, right=("epoch", "lag"))


def _print_wide(members: Sequence[NodeStatus]) -> None:
    versions = {node.version for node in members}
    rows = [
        (
            node.called,
            node.server,
            node.host or "-",
            node.pid,
            node.state,
            node.phase,
            node.epoch or "-",
            "-" if node.probe_age is None else f"{node.probe_age:.1f} s",
            f"epoch {node.holder_epoch}" if node.holder_epoch else "-",
            node.store_id[:8] or "-",
            "-"
            if node.warm_lag is None
            else f"{node.warm_lag.messages} msgs, {node.warm_lag.seconds:.1f} s",
            _mixed_word(node),
            node.version,
            _note(node, versions),
        )
        for node in members
    ]
    print_table(_WIDE_HEADS, rows, right=("pid", "epoch", "probe"))


def _role(node: NodeStatus) -> Styled:
    if node.paused:
        return Styled("paused", "yellow")
    if node.serving:
        return Styled("active", "bold green")
    if node.owns_store:
        return Styled("recovering", "yellow")
    if node.can_take_over:
        return Styled("standby", "cyan")
    # It could not take over: its phase, under the note, says why.
    return Styled("standby" if node.state == NodeState.STANDBY else node.state.lower(), "red")


def _note(node: NodeStatus, versions: set[str]) -> str:
    notes = []
    if node.storage_late or not (node.serving or node.can_take_over or node.paused):
        notes.append(node.activity)
    if node.probe_age is not None and node.probe_age > _SILENT_S:
        notes.append(f"storage silent for {node.probe_age:.0f} s")
    if node.mixed:
        notes.append("mixed, not fit yet" if _mixed_word(node) == "not yet" else "mixed")
    if node.switchover_at_ns:
        notes.append(f"switchover at {time_of(node.switchover_at_ns)}")
    if len(versions) > 1:
        notes.append(f"version {node.version}")
    return "; ".join(notes)


def _mixed_word(node: NodeStatus) -> str:
    """Standbys have no files to make fit."""
    if node.mixed and node.serving and not node.fit:
        return "not yet"
    return "yes" if node.mixed else "no"


# ---- from storage
# --------------------------------------------------------------------------------------------------


def _owner_of(owner: EpochRecord) -> str:
    """Who it is, as far as the record says: an older release wrote less of it."""
    who = owner.name or owner.server_id or "-"
    host = f" on {owner.host}" if owner.host else ""
    return f"{who}{host}, pid {owner.pid}" if owner.pid else f"{who}{host}"


def _from_storage(arguments: argparse.Namespace) -> int:
    # Late: who asks over NATS needs no store.
    from ftstan.base.disk import LocalDisk  # noqa: PLC0415
    from ftstan.ft.storage_look import judge_storage, look_at  # noqa: PLC0415

    look = look_at(LocalDisk(), arguments.dir, time.sleep)
    verdict = judge_storage(look)
    owner = look.owner
    last_ns = look.watch.at_ns if look.watch is not None and look.watch.epoch == owner.epoch else 0
    if arguments.output == "json":
        print_json(
            {
                "dir": arguments.dir,
                "health": verdict.health.name.lower(),
                "problems": list(verdict.problems),
                "storage": {
                    "epoch": owner.epoch,
                    "name": owner.name,
                    "server": owner.server_id,
                    "host": owner.host,
                    "pid": owner.pid,
                    "since_ns": owner.since_ns,
                    "store_id": owner.store_id.hex(),
                    "mixed": owner.ft_mixed,
                    "lock_held": look.lock_held,
                    "answers": look.lives,
                    "last_sign_ns": last_ns,
                    "claims": list(look.claims),
                    "paused": list(look.paused),
                },
            }
        )
        return int(verdict.health)
    rows = [
        ("epoch", f"{owner.epoch} since {time_of(owner.since_ns)}"),
        ("owner", _owner_of(owner)),
        ("lock", "held" if look.lock_held else "free"),
        (
            "heartbeat",
            f"ft.watch {'changes' if look.lives else 'does not change'}, last {time_of(last_ns)}",
        ),
    ]
    if look.claims:
        rows.append(
            ("claims", f"{', '.join(map(str, look.claims))}: a takeover is under way, or died")
        )
    if look.paused:
        rows.append(("paused", f"{', '.join(look.paused)} (ends with ftstanctl ft resume)"))
    for head, text in rows:
        say(f"{head:<9}  {text}")
    return _say_verdict(verdict)
