"""``ftstanctl check-store``: can this directory carry a group's datastore?

See ``docs/check-store.md``.

Exit status: 0 suitable, 1 suitable with limits, 2 unsuitable, 3 it could not be found out.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError
from ftstan.cli.terminal import Status, print_json, print_table, say
from ftstan.cli.words.check_store import (
    EXIT_LIMITED,
    EXIT_SUITABLE,
    EXIT_UNSUITABLE,
)
from ftstan.ft.direct import asking_disk
from ftstan.storecheck import host, integrity, peer
from ftstan.storecheck.bench import Bench, Runner
from ftstan.storecheck.findings import Outcome, StorageFinding, StorageReport, StorageVerdict
from ftstan.storecheck.meeting import Meeting
from ftstan.storecheck.neighbour import NeighbourProcess
from ftstan.storecheck.place import Host, scratch, this_host

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from ftstan.storecheck.findings import Expected
    from ftstan.stores.sql.source import Source


_STATUSES = {
    StorageVerdict.SUITABLE: EXIT_SUITABLE,
    StorageVerdict.LIMITED: EXIT_LIMITED,
    StorageVerdict.UNSUITABLE: EXIT_UNSUITABLE,
}
_SHOWN = {Outcome.GOOD: "ok", Outcome.NOTE: "note", Outcome.LIMIT: "LIMIT", Outcome.BAD: "BAD"}
_BAR = 40


def run(arguments: argparse.Namespace) -> int:
    """Check; returns the exit status. Raises ``FtstanError``."""
    _check_words(arguments)
    # Late, as the checks of databases: few ask for them.
    from ftstan.cli.databases import named  # noqa: PLC0415

    source = named(arguments.dir)
    if source is not None:
        return _database(arguments, source)
    here = this_host(arguments.dir)
    told = _Told(shown=arguments.output == "table")
    try:
        with told:
            report = _report(arguments, here, told)
    except OSError as error:
        raise ConfigError(
            f"{arguments.dir}: {error.strerror or error}",
            hint="check the directory, its permissions and its mount",
        ) from error
    if arguments.output == "json":
        print_json(report.as_dict())
    else:
        _show(report)
    return _STATUSES[report.verdict]


def _database(arguments: argparse.Namespace, source: Source) -> int:
    from ftstan.storecheck.database import CHECKS, check_database  # noqa: PLC0415

    if arguments.peer or arguments.phase:
        raise ConfigError(
            "--peer and --phase are for directories",
            hint="run it on every host: each has to reach the database",
        )
    told = _Told(shown=arguments.output == "table")
    told.total = len(CHECKS[source.driver])
    with told:
        findings = check_database(source, told)
    report = StorageReport(source.shown(), "database", socket.gethostname(), findings)
    if arguments.output == "json":
        print_json(report.as_dict())
    else:
        _show(report)
    return _STATUSES[report.verdict]


def _check_words(arguments: argparse.Namespace) -> None:
    if arguments.peer and arguments.phase:
        raise ConfigError("--peer and --phase exclude each other", hint="run one after the other")
    if arguments.freeze and not arguments.peer:
        raise ConfigError(
            "--freeze needs a second host", hint="add --peer, and run it there without --freeze"
        )
    if arguments.phase == "attack" and len(arguments.journal) != 1:
        raise ConfigError(
            "an attack needs one journal", hint="give --journal a file on a disk of this host"
        )
    if arguments.phase == "verify" and not arguments.journal:
        raise ConfigError(
            "verify needs the journals", hint="give --journal once for each host that attacked"
        )


def _report(arguments: argparse.Namespace, here: Host, told: _Told) -> StorageReport:
    match arguments.phase:
        case "format":
            integrity.format_place(LocalDisk(), arguments.dir)
            return _phase(
                arguments,
                here,
                [_done("prepared; next: --phase attack on every host, then pull plugs")],
            )
        case "attack":
            return _phase(arguments, here, [_done(_attack(arguments, here, told))])
        case "verify":
            return _phase(arguments, here, _verify(arguments, here))
    return _peer(arguments, here, told) if arguments.peer else _alone(arguments, here, told)


# ---- one host, two hosts
# ---------------------------------------------------------------------------------------------


def _alone(arguments: argparse.Namespace, here: Host, told: _Told) -> StorageReport:
    with scratch(LocalDisk(), arguments.dir) as (path, handle):
        bench = _bench(here, path, handle)
        told.total = len(host.CHECKS)
        findings = Runner(bench, told).run(host.CHECKS)
        return StorageReport(
            arguments.dir, "host", here.name, findings, host.expected(bench, findings)
        )


def _peer(arguments: argparse.Namespace, here: Host, told: _Told) -> StorageReport:
    disk = LocalDisk()
    clock = SystemClock()
    asking = asking_disk(disk, is_network=here.mount.is_network)
    meeting = Meeting(disk, asking, clock, time.sleep, arguments.dir, wait_s=arguments.wait)
    try:
        told(f"waiting up to {arguments.wait:g} s for the other host")
        meeting.find()
        bench = _bench(here, meeting.path, meeting.dirfd)
        options = peer.PeerOptions(arguments.contend, arguments.freeze, arguments.freeze_wait)
        findings = peer.Peer(bench, meeting, options, told).run()
        return StorageReport(
            arguments.dir, "peer", here.name, findings, peer.expected(bench, findings)
        )
    finally:
        meeting.end()


def _bench(here: Host, path: str, handle: int) -> Bench:
    disk = LocalDisk()
    network = here.mount.is_network

    @contextlib.contextmanager
    def neighbour() -> Iterator[NeighbourProcess]:
        process = NeighbourProcess(path, is_network=network)
        try:
            yield process
        finally:
            process.end()

    return Bench(
        disk=disk,
        asking=asking_disk(disk, is_network=network),
        clock=SystemClock(),
        sleep=time.sleep,
        host=here,
        path=path,
        dirfd=handle,
        neighbour=neighbour,
    )


# ---- phases
# --------------------------------------------------------------------------------------------------


def _attack(arguments: argparse.Namespace, here: Host, told: _Told) -> str:
    (journal,) = arguments.journal
    parent = this_host(os.path.dirname(os.path.abspath(journal)))
    if parent.mount.point == here.mount.point:
        raise ConfigError(
            f"journal {journal} is on the storage that is attacked",
            hint="give --journal a file on another disk",
        )
    clock = SystemClock()
    end = clock.mono() + arguments.seconds
    attack = integrity.Attack(
        LocalDisk(), clock, time.sleep, arguments.dir, journal, told, lambda: clock.mono() > end
    )
    try:
        durable = attack.run()
    except KeyboardInterrupt:
        return f"ended by Ctrl-C; durable records are in {journal}; next: --phase verify"
    return f"{durable} records made durable, noted in {journal}; next: --phase verify"


def _verify(arguments: argparse.Namespace, here: Host) -> Sequence[StorageFinding]:
    disk = LocalDisk()
    asking = asking_disk(disk, is_network=here.mount.is_network)
    findings = integrity.verify(disk, asking, arguments.dir, arguments.journal)
    if arguments.remove:
        integrity.remove_place(disk, arguments.dir)
    return findings


def _phase(
    arguments: argparse.Namespace, here: Host, findings: Sequence[StorageFinding]
) -> StorageReport:
    return StorageReport(arguments.dir, arguments.phase, here.name, findings)


def _done(text: str) -> StorageFinding:
    return StorageFinding("integrity", Outcome.GOOD, text)


# ---- what is shown
# --------------------------------------------------------------------------------------------------


class _Told(Status):
    """The line that says what is being done: on standard error, renewed on a terminal and plain
    elsewhere.
    """

    def __init__(self, *, shown: bool) -> None:
        super().__init__(shown=shown)
        self.total = 0
        self._count = 0

    def __call__(self, text: str) -> None:
        self._count += 1
        line = f"[{self._count}/{self.total}] {text}" if self.total else text
        if self._status is not None:
            self._status.update(line.replace("[", r"\["))
        elif self._shown:
            say(line, file=sys.stderr)


def _show(report: StorageReport) -> None:
    rows = [(_SHOWN[finding.outcome], finding.check, finding.text) for finding in report.findings]
    print_table(("", "check", "what was seen"), rows)
    for finding in report.findings:
        if histogram := finding.figures.get("histogram"):
            _show_histogram(histogram)
    if report.expected:
        say("", "takeover to expect")
        print_table(
            ("event", "seconds", "why"),
            [_expected_row(x) for x in report.expected],
            right=("seconds",),
        )
    say("", f"{report.directory}: {report.verdict.value.upper()}")
    for finding in report.reasons:
        say(f"  {finding.check}: {finding.text}")
        if finding.hint:
            say(f"    {finding.hint}")
    for finding in report.findings:
        if finding.outcome is Outcome.NOTE and finding.hint:
            say(f"note: {finding.text}: {finding.hint}")


def _expected_row(expected: Expected) -> tuple[str, str, str]:
    seconds = "-" if expected.seconds is None else f"{expected.seconds:.2f}"
    return expected.event, seconds, f"{expected.why}{' (measured)' if expected.measured else ''}"


def _show_histogram(rows: object) -> None:
    assert isinstance(rows, list)
    most = max(row["count"] for row in rows)
    say("", "syncs by duration")
    for row in rows:
        say(
            f"{row['upto_ms']:>9g} ms  {row['count']:>5}  "
            f"{'#' * max(1, round(_BAR * row['count'] / most))}"
        )
