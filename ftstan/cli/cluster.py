"""``ftstanctl cluster``: look at a replicated cluster over NATS and steer it.

Nothing here decides who leads: nodes are asked, and the log decides. What changes something is
sealed with the ``admin.key`` of the datastore of the node that leads (``docs/clustering.md``).

Exit status of every command: 0 done (``status``: healthy), 1 refused (``status``: degraded), 2
nobody leads, 3 it could not be asked or carried out.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from ftstan.admin.protocol import Request, Verb
from ftstan.base.errors import NatsError, RefusedError
from ftstan.base.states import ClusterRole
from ftstan.cli import contexts
from ftstan.cli.admin_client import BUSY_S, Asked, UnservedError, claimed
from ftstan.cli.confirming import confirm
from ftstan.cli.connecting import link_options
from ftstan.cli.terminal import Styled, complain, print_json, print_table, say, say_styled
from ftstan.cli.watching import shown
from ftstan.cli.words.cluster import OFFLINE
from ftstan.cli.words.servers import EXIT_DONE, EXIT_REFUSED, EXIT_UNSERVED
from ftstan.cluster import health
from ftstan.cluster.health import find_leader, find_successor, judge
from ftstan.cluster.members import OTHERS
from ftstan.ft.health import Health
from ftstan.ft.subjects import question_subject
from ftstan.nats.clustered import LOG_USER, read_log_password

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from ftstan.base.states import NodeStatus
    from ftstan.cluster.seeding import Seeded
    from ftstan.ft.ownership import StoreOwner

_LOOK_EVERY_S = 0.1
_COLOURS = {
    Health.HEALTHY: "bold green",
    Health.DEGRADED: "bold yellow",
    Health.UNSERVED: "bold red",
}
_ROLES = {
    ClusterRole.LEADER: "bold green",
    ClusterRole.FOLLOWER: "cyan",
    ClusterRole.CANDIDATE: "yellow",
    ClusterRole.SHUTDOWN: "red",
}


@dataclass(frozen=True, slots=True)
class Nodes(Asked):
    """The nodes of a replicated cluster."""

    def all(
        self,
        seconds: float | None = None,
        enough: Callable[[list[NodeStatus]], bool] = lambda _: False,
        complete: Callable[[list[NodeStatus]], bool] = lambda _: False,
    ) -> list[NodeStatus]:
        """Every node that answers, by id; sooner as ``who`` says."""
        found = self.who(question_subject(self.cluster), seconds, enough, complete)
        return sorted((n for n in found if n.node_id), key=lambda n: (n.node_id, n.server))

    def others(self) -> str:
        """Who answers that is no node, in words; empty if nobody does."""
        found = self.who(question_subject(self.cluster))
        return f"cluster {self.cluster} has servers that are not clustered" if found else ""

    def leader(self) -> tuple[NodeStatus, list[NodeStatus]]:
        """The node that leads, and all nodes. Raises ``UnservedError``."""
        nodes = self.all(complete=_is_healthy)
        if find_leader(nodes) is None:
            nodes = self.all(BUSY_S, lambda found: find_leader(found) is not None)
        leader = find_leader(nodes)
        if leader is None:
            problem = judge(nodes).problems[0]
            if not nodes and (others := self.others()):
                problem = f"{problem}; {others}"
            raise UnservedError(
                f"cluster {self.cluster}: {problem}",
                hint="see ftstanctl cluster status; check --server and --cluster",
            )
        return leader, nodes


def run(arguments: argparse.Namespace) -> int:
    """Carry out one sub-command; returns the exit status. Raises ``FtstanError``."""
    if arguments.verb not in OFFLINE:
        contexts.fill(arguments)
    try:
        return _COMMANDS[arguments.verb](arguments)
    except RefusedError as error:
        return complain(error, EXIT_REFUSED)
    except UnservedError as error:
        return complain(error, EXIT_UNSERVED)


def _with_nodes(arguments: argparse.Namespace, work: Callable[[Nodes], int]) -> int:
    # Late: words and help need no client of NATS.
    from ftstan.nats.request import asking  # noqa: PLC0415

    with asking(arguments.server, link_options(arguments), seconds=arguments.timeout) as asker:
        return work(Nodes(asker, arguments.cluster, arguments.timeout))


# ---- status
# --------------------------------------------------------------------------------------------------


def _status(arguments: argparse.Namespace) -> int:
    return shown(_look, arguments)


def _look(arguments: argparse.Namespace) -> int:
    def work(asked: Nodes) -> int:
        expect = arguments.expect

        def complete(found: Sequence[NodeStatus]) -> bool:
            return len(found) >= expect and _is_healthy(found)

        nodes = asked.all(complete=complete)
        verdict = judge(nodes, expect)
        members = health.members(nodes)
        problems = verdict.problems
        if not nodes and (others := asked.others()):
            problems = (*problems, others)
        if arguments.output == "json":
            print_json(
                {
                    "cluster": asked.cluster,
                    "health": verdict.health.name.lower(),
                    "problems": list(problems),
                    "members": list(members),
                    "nodes": [node.to_json() for node in nodes],
                }
            )
            return int(verdict.health)
        if nodes:
            _print_nodes(nodes, members)
        line = ": ".join(filter(None, [verdict.health.name.lower(), "; ".join(problems)]))
        say_styled(line, _COLOURS[verdict.health])
        return int(verdict.health)

    return _with_nodes(arguments, work)


def _is_healthy(nodes: Sequence[NodeStatus]) -> bool:
    return judge(nodes).health is Health.HEALTHY


def _print_nodes(nodes: Sequence[NodeStatus], members: Sequence[str]) -> None:
    leader = find_leader(nodes)
    end = leader.clustering.read if leader is not None and leader.clustering is not None else 0
    rows = []
    for node in nodes:
        said = node.clustering
        role = Styled(node.role.lower(), _ROLES.get(ClusterRole(node.role), ""))
        behind = str(max(end - said.read, 0)) if said is not None and end else "-"
        rows.append(
            (
                *(node.node_id, role, node.host or "-"),
                *(said.read if said is not None else "-", behind),
                *(said.stored if said is not None else "-", _note(node, members)),
            )
        )
    print_table(
        ("node", "role", "host", "entry", "behind", "stored", "note"),
        rows,
        right=("entry", "behind", "stored"),
    )


def _note(node: NodeStatus, members: Sequence[str]) -> str:
    if node.node_id not in members and members:
        return "removed"
    is_well = health.can_lead(node) or (node.role == ClusterRole.LEADER and node.serving)
    return "" if is_well else node.activity


# ---- stepdown
# --------------------------------------------------------------------------------------------------


def _stepdown(arguments: argparse.Namespace) -> int:
    def work(asked: Nodes) -> int:
        leader, nodes = asked.leader()
        to = find_successor(nodes, leader, arguments.to)
        confirm(
            arguments,
            f"have {leader.node_id} step down, for {to or 'any other node'} to lead",
            destroys=False,
        )
        began = time.monotonic()
        asked.change(arguments, leader, Request(Verb.STEP_DOWN, to=to, by=claimed()))
        successor = _wait_for_successor(asked, leader, began + arguments.wait)
        took = time.monotonic() - began
        if successor is None:
            raise UnservedError(
                f"{leader.node_id} has stepped down, and nobody has served within "
                f"{arguments.wait:g} s",
                hint="see ftstanctl cluster status and the nodes' logs",
            )
        if arguments.output == "json":
            print_json({"from": leader.node_id, "to": successor.node_id, "seconds": round(took, 3)})
        else:
            say(f"{successor.node_id} leads since {took:.3f} s after the request")
        if to and successor.node_id != to:
            raise RefusedError(
                f"{successor.node_id} leads, not {to}", hint=f"read the log of {to} for why"
            )
        return EXIT_DONE

    return _with_nodes(arguments, work)


def _wait_for_successor(asked: Nodes, former: NodeStatus, deadline: float) -> NodeStatus | None:
    def successor(nodes: Sequence[NodeStatus]) -> NodeStatus | None:
        return find_leader([node for node in nodes if node.server != former.server])

    problem: NatsError | None = None
    while time.monotonic() < deadline:
        try:
            nodes = asked.all(_LOOK_EVERY_S, lambda found: successor(found) is not None)
        except NatsError as error:
            # It was the former leader's own server and ended with it: another one answers, or it
            # comes back.
            problem = error
            nodes = []
        else:
            problem = None
        if (found := successor(nodes)) is not None:
            return found
        # Nobody at all listens: the question comes back at once.
        time.sleep(_LOOK_EVERY_S / 4)
    if problem is not None:
        raise problem
    return None


# ---- add, remove
# --------------------------------------------------------------------------------------------------


def _add(arguments: argparse.Namespace) -> int:
    return _change(arguments, Verb.ADD_NODE)


def _remove(arguments: argparse.Namespace) -> int:
    return _change(arguments, Verb.REMOVE_NODE)


def _change(arguments: argparse.Namespace, verb: Verb) -> int:
    if verb is Verb.REMOVE_NODE and arguments.others:
        return _with_nodes(arguments, lambda asked: _remove_others(arguments, asked))

    def work(asked: Nodes) -> int:
        leader, nodes = asked.leader()
        node = arguments.node
        removes = verb is Verb.REMOVE_NODE
        known = health.members(nodes)
        if removes and node not in known:
            raise RefusedError(
                f"{node} is no node of cluster {asked.cluster}",
                hint=f"these are: {', '.join(known)}",
            )
        if removes:
            left = len(known) - 1
            confirm(
                arguments,
                f"remove {node}: {left} nodes are left, and it cannot lead any more",
                destroys=False,
            )
        asked.change(arguments, leader, Request(verb, name=node, by=claimed()))
        if arguments.output == "json":
            print_json({"node": node, "member": not removes})
        else:
            say(f"{node}: {'removed' if removes else 'added'}")
        return EXIT_DONE

    return _with_nodes(arguments, work)


def _remove_others(arguments: argparse.Namespace, asked: Nodes) -> int:
    leader, _ = asked.leader()
    confirm(
        arguments,
        f"remove all nodes but {leader.node_id}: while that one is away, nobody serves",
        destroys=False,
    )
    asked.change(arguments, leader, Request(Verb.REMOVE_NODE, name=OTHERS, by=claimed()))
    if arguments.output == "json":
        print_json({"left": leader.node_id})
    else:
        say(f"{leader.node_id}: all other nodes were removed")
    return EXIT_DONE


# ---- backup
# --------------------------------------------------------------------------------------------------


def _backup(arguments: argparse.Namespace) -> int:
    # Late: the other verbs need no store.
    from ftstan.base.clock import SystemClock  # noqa: PLC0415
    from ftstan.cluster.backup import back_up  # noqa: PLC0415
    from ftstan.nats.jetstream import JetStream  # noqa: PLC0415
    from ftstan.nats.link import Link  # noqa: PLC0415

    options = link_options(arguments)
    if arguments.log_path:
        options = replace(options, user=LOG_USER, password=read_log_password(arguments.log_path))
    clock = SystemClock()
    link = Link(arguments.server.split(","), name="ftstanctl", options=options, clock=clock)
    js = JetStream(link, clock)
    try:
        js.connect(BUSY_S)
        made = back_up(
            *(js, arguments.cluster, arguments.target),
            node=arguments.node,
            seconds=arguments.timeout,
            clock=clock,
            owning=_owned,
        )
    finally:
        js.close()
    if arguments.output == "json":
        print_json({"target": arguments.target, **asdict(made)})
    else:
        say(
            f"{arguments.target}: {made.messages} messages in {made.channels} channels of node "
            f"{made.node}, up to entry {made.entry}"
        )
    return EXIT_DONE


# ---- seed, leave
# --------------------------------------------------------------------------------------------------


def _seed(arguments: argparse.Namespace) -> int:
    from ftstan.base.clock import SystemClock  # noqa: PLC0415
    from ftstan.cluster.seeding import seed  # noqa: PLC0415

    with _owned(arguments.dir) as owner:
        made = seed(arguments.dir, arguments.log_path, arguments.node_id, owner, SystemClock())
    return _say_held(arguments, made, f"is the datastore of node {made.node}")


def _leave(arguments: argparse.Namespace) -> int:
    from ftstan.base.clock import SystemClock  # noqa: PLC0415
    from ftstan.cluster.seeding import leave  # noqa: PLC0415

    with _owned(arguments.dir) as owner:
        left = leave(
            *(arguments.dir, arguments.log_path, owner, SystemClock()),
            not_last=arguments.not_last,
        )
    what = (
        f"is no node's any more, and has what cluster {left.cluster} had up to entry {left.entry}"
    )
    return _say_held(arguments, left, what)


def _say_held(arguments: argparse.Namespace, held: Seeded, what: str) -> int:
    if arguments.output == "json":
        print_json({"dir": arguments.dir, **asdict(held)})
    else:
        say(
            f"{arguments.dir} {what}: {held.messages} messages in {held.channels} channels, "
            f"{held.clients} clients"
        )
    return EXIT_DONE


@contextlib.contextmanager
def _owned(path: str) -> Iterator[StoreOwner]:
    from ftstan.cli.store_owner import owning  # noqa: PLC0415

    with owning(path) as (owner, _):
        yield owner


_COMMANDS = {
    "status": _status,
    "stepdown": _stepdown,
    "add": _add,
    "remove": _remove,
    "backup": _backup,
    "seed": _seed,
    "leave": _leave,
}
