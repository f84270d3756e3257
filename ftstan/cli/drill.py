"""``ftstanctl drill``: rehearse a failure, and judge what came of it (``docs/drills.md``).

Exit status: 0 every promise was kept, 1 one was broken or something expected did not happen, 2
wrong words or a wrong scenario, 3 the drill could not be carried out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.base.sizes import count_of
from ftstan.cli import client_options, contexts, databases
from ftstan.cli.contexts import CONTEXT_VARIABLE, SETTINGS
from ftstan.cli.terminal import Status, print_json, print_table, say, visible
from ftstan.cli.words.drill import EXIT_FAILED, EXIT_PASSED
from ftstan.drill import catalogue, ledger, selftest, setting
from ftstan.drill.cluster import LocalCluster
from ftstan.drill.errors import DrillError
from ftstan.drill.judge import judge
from ftstan.drill.local import LocalGroup
from ftstan.drill.page import Timeline, page
from ftstan.drill.play import LEDGER, play
from ftstan.drill.remote import RemoteGroup
from ftstan.drill.report import as_dict, junit
from ftstan.drill.result import Result
from ftstan.drill.scenario import LOCAL, in_database, in_directory, load
from ftstan.drill.workload import Access

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ftstan.drill.driver import Driver
    from ftstan.drill.judge import Outage
    from ftstan.drill.rules import Rule
    from ftstan.drill.scenario import Scenario
    from ftstan.drill.setting import NodeFacts
    from ftstan.stores.sql.source import Source


_PLAIN_EVERY_S = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Carry it out; returns the exit status. Raises ``FtstanError``."""
    if arguments.self_test:
        return _self_test(arguments)
    if arguments.list:
        return _list(arguments)
    if arguments.show:
        return _show_scenario(arguments.show)
    if arguments.judge:
        return _judge(arguments)
    if not arguments.scenario:
        raise ConfigError(
            "which drill?",
            hint="give a scenario's file, or a name that ftstanctl drill --list shows",
        )
    databases.require_driver(arguments)
    scenario = load(catalogue.find(arguments.scenario))
    scenario = (
        in_database(scenario, arguments.sql_driver)
        if arguments.sql_driver
        else in_directory(scenario)
    )
    if arguments.check:
        return _check(arguments, scenario)
    if arguments.repeat:
        scenario = replace(scenario, repeat=arguments.repeat)
    return _play(arguments, scenario)


def _json(arguments: argparse.Namespace) -> bool:
    return bool(arguments.output == "json")


# ---- a drill
# --------------------------------------------------------------------------------------------------


def _play(arguments: argparse.Namespace, scenario: Scenario) -> int:
    database = databases.flagged(arguments) if scenario.database else None
    if database is not None:
        scenario = replace(scenario, database=database[0].shown())
    directory = os.path.abspath(
        arguments.out or f"drill-{scenario.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    try:
        os.makedirs(directory)
    except OSError as error:
        raise ConfigError(
            f"{directory}: {error.strerror}", hint="give --out a directory that does not exist"
        ) from error
    screen = _Screen(shown=not _json(arguments))
    try:
        driver = _driver(arguments, scenario, directory, database)
    except FtstanError:
        os.rmdir(directory)
        raise
    try:
        with screen:
            result = play(scenario, driver, directory, screen)
    except OSError as error:
        raise DrillError(
            f"{scenario.name}: {error}", hint=f"what there is was kept in {directory}"
        ) from error
    return _report(arguments, result)


def _driver(
    arguments: argparse.Namespace,
    scenario: Scenario,
    directory: str,
    database: tuple[Source, str] | None,
) -> Driver:
    """Who carries it out. ``database``, with its source as written, is made ready.

    Raises ``FtstanError``.
    """
    if scenario.driver != LOCAL:
        return RemoteGroup(scenario, _access(arguments, scenario))
    if scenario.clustered:
        return LocalCluster(scenario, directory)
    if database is None:
        return LocalGroup(scenario, directory)
    # Late: most drills need no client library.
    from ftstan.cli.drill_database import prepare  # noqa: PLC0415
    from ftstan.drill.database import LocalDatabaseGroup  # noqa: PLC0415

    source, text = database
    prepare(source)
    return LocalDatabaseGroup(scenario, directory, source, text)


def _access(arguments: argparse.Namespace, scenario: Scenario) -> Access:
    """Servers, cluster and group are the scenario's, unless the words say others.

    Logins as for every command.
    """
    arguments.server = arguments.server or ",".join(scenario.servers)
    arguments.cluster = arguments.cluster or scenario.cluster
    arguments.group = arguments.group or scenario.group
    contexts.fill(arguments)
    given = {
        setting.variables[0]: getattr(arguments, setting.name)
        for setting in SETTINGS
        if setting.name != "dir"
    }
    environment = {variable: value for variable, value in given.items() if value}
    if arguments.context:
        environment[CONTEXT_VARIABLE] = arguments.context
    key_words = [
        word
        for flag in ("dir", "admin_key")
        if getattr(arguments, flag)
        for word in _flag(arguments, flag)
    ]
    return Access(
        servers=[server.strip() for server in arguments.server.split(",")],
        cluster=arguments.cluster,
        group=arguments.group,
        login=client_options.login(arguments),
        environment=environment,
        key_words=[*key_words, *(["--tlsinsecure"] if arguments.insecure else [])],
    )


def _flag(arguments: argparse.Namespace, name: str) -> tuple[str, str]:
    return f"--{name.replace('_', '-')}", getattr(arguments, name)


def _judge(arguments: argparse.Namespace) -> int:
    directory = arguments.judge
    inner = os.path.join(directory, LEDGER)
    place = inner if os.path.isdir(inner) else directory
    try:
        verdict = judge(ledger.read(place))
        times = [record.t for record in ledger.read(place)]
    except OSError as error:
        raise ConfigError(
            f"{place}: {error.strerror}", hint="give a directory with *.jsonl files"
        ) from error
    name = os.path.basename(os.path.abspath(directory))
    played = setting.read(directory) or setting.read(os.path.dirname(os.path.abspath(directory)))
    began = min(times, default=0)
    result = Result(name, "", began, max(times, default=0), verdict, setting=played)
    return _report(arguments, result, place)


def _report(arguments: argparse.Namespace, result: Result, place: str = "") -> int:
    """Write what was asked for, and show the rest.

    ``place`` is the ledger's, if it is not the run's own.
    """
    timeline = Timeline.of(ledger.read(place or os.path.join(result.directory, LEDGER)))
    files = [(arguments.html, page(result, timeline)), (arguments.junit, junit(result))]
    if result.directory:
        files.append((os.path.join(result.directory, "report.html"), page(result, timeline)))
        files.append(
            (os.path.join(result.directory, "result.json"), f"{json.dumps(as_dict(result))}\n")
        )
    for path, text in files:
        if path:
            _write(path, text)
    if _json(arguments):
        print_json(as_dict(result))
    else:
        _show(result)
    return EXIT_PASSED if result.passed else EXIT_FAILED


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", hint="is its directory there, and writable?"
        ) from error


def _show(result: Result) -> None:
    verdict = result.verdict
    takeovers = [x for x in verdict.switches if x.former]
    if takeovers:
        heads = ("active ms", "ack ms")
        rows = [
            (x.fault, x.former, x.node, f"{x.active_ms:,.0f}", f"{x.ack_ms:,.0f}")
            for x in takeovers
        ]
        print_table(("takeover", "from", "to", *heads), rows, right=heads)
        say()
    if result.spreads:
        columns = ("times", "min", "median", "p99", "max")
        spread_rows = [
            (x.fault, x.count, *map(_ms, (x.least, x.median, x.p99, x.most)))
            for x in result.spreads
        ]
        print_table(("without acks, ms", *columns), spread_rows, right=columns)
        say()
    if verdict.outages:
        _show_faults(verdict.outages)
    if result.setting is not None:
        versions = dict.fromkeys(node.version or "unknown" for node in result.setting.nodes)
        say(f"load: {result.setting.load}")
        say(
            f"servers: {', '.join(_node(x) for x in result.setting.nodes)}; version"
            f"{'s' if len(versions) > 1 else ''} {', '.join(versions)}"
        )
        if result.setting.database:
            say(f"database: {result.setting.database}")
    say(
        f"published {verdict.published:,}, acked {verdict.acked:,}, stored {verdict.stored:,} "
        f"({verdict.stored_without_ack:,} without an ack), delivered {verdict.delivered:,}, "
        f"redelivered {verdict.redelivered:,}, readings {verdict.readings}"
    )
    if result.unacked:
        say(result.unacked)
    for breach in verdict.breaches:
        say(f"BROKEN: {breach.rule.value}: {breach.count:,}")
        for example in breach.examples:
            say(f"  {example}")
    for failure in result.failures:
        say(f"FAILED: {failure}")
    if result.directory:
        say(f"report: {os.path.join(result.directory, 'report.html')}")
    say(f"{result.name}: {'PASSED' if result.passed else 'FAILED'}")


def _show_faults(outages: Sequence[Outage]) -> None:
    """How much was published and acked around each fault."""
    heads = (
        *("without acks, ms", "acks before", "during", "after"),
        *("published before", "during", "after"),
    )
    rows = [
        (x.fault, x.node, _ms(x.ms), *(f"{n:,}" for n in (*x.acked, *x.published))) for x in outages
    ]
    print_table(("fault", "node", *heads), rows, right=heads)
    say()


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _node(node: NodeFacts) -> str:
    return f"{node.name} on {node.host}" if node.host else node.name


class _Screen(Status):
    """Lines that stay, and on a terminal one below them that does not; all on standard error."""

    def __init__(self, *, shown: bool) -> None:
        super().__init__(shown=shown)
        self._began = self._told_at = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._shown:
            self._console.print(
                Text(f"{time.monotonic() - self._began:6.1f} s  {visible(text)}"), soft_wrap=True
            )

    def progress(self, text: str) -> None:
        """How things are; where there is no terminal, a plain line every few seconds."""
        if self._status is not None:
            self._status.update(Text(visible(text)))
        elif time.monotonic() - self._told_at > _PLAIN_EVERY_S:
            self._told_at = time.monotonic()
            self.say(text)


# ---- beside drills
# --------------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    rows = [
        (x.name, x.driver, ", ".join(dict.fromkeys(step.kind for step in x.steps)), x.text)
        for x in catalogue.shipped()
    ]
    if _json(arguments):
        print_json(
            {
                "drills": [
                    {"name": n, "driver": d, "faults": f.split(", "), "text": t}
                    for n, d, f, t in rows
                ]
            }
        )
    else:
        print_table(("name", "driver", "faults", "what happens"), rows)
    return EXIT_PASSED


def _check(arguments: argparse.Namespace, scenario: Scenario) -> int:
    if _json(arguments):
        print_json(
            {"name": scenario.name, "faults": len(scenario.steps), "repeat": scenario.repeat}
        )
    else:
        say(
            f"{scenario.file}: {count_of(len(scenario.steps), 'fault')}, played "
            f"{count_of(scenario.repeat, 'time')}; it can be played"
        )
    return EXIT_PASSED


def _show_scenario(name: str) -> int:
    path = catalogue.find(name)
    load(path)
    with open(path, encoding="utf-8") as file:
        sys.stdout.write(file.read())
    return EXIT_PASSED


def _self_test(arguments: argparse.Namespace) -> int:
    trials = selftest.trials()
    if _json(arguments):
        print_json(
            {
                "passed": all(x.passed for x in trials),
                "trials": [
                    {
                        "injected": x.injected,
                        "passed": x.passed,
                        "found": sorted(r.name.lower() for r in x.found),
                    }
                    for x in trials
                ],
            }
        )
    else:
        rows = [("ok" if x.passed else "FAILED", x.injected, _found(x.found)) for x in trials]
        print_table(("", "put into a ledger", "what the judge said"), rows)
    return EXIT_PASSED if all(x.passed for x in trials) else EXIT_FAILED


def _found(rules: frozenset[Rule]) -> str:
    return "; ".join(sorted(rule.value for rule in rules)) or "clean"
