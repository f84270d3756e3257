"""``ftstanctl store repair``, ``compact``, ``handover`` and ``rekey``: the commands that write,
while no server is running.

Each takes the lock, an epoch and its record like a node that starts, and gives the lock back at the
end. What is done to files is in ``stores/file/tools``; here is only the order of it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.environment import KEY_VARIABLE
from ftstan.base.errors import ConfigError
from ftstan.cli.store_look import source_at, wanted_channel
from ftstan.cli.store_owner import owning
from ftstan.cli.terminal import print_json, progress, say, text_of
from ftstan.config.options import EncryptionOptions
from ftstan.ft.epoch_loss import EpochFacts, find_epochs
from ftstan.stores.encryption.ring import ring_of
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.changing import (
    leave_as_stopped,
    rewrite,
    source_of,
    source_to_judge,
    start_and_stop,
)
from ftstan.stores.file.tools.reading import ChannelFiles, channel_names
from ftstan.stores.file.tools.rekeying import rekey_store
from ftstan.stores.file.tools.repairing import Plan, Repair, make_plan, open_aside
from ftstan.stores.file.tools.rewriting import compact_channel, hand_over_channel
from ftstan.stores.file.tools.verifying import DefectKind, StoreFinding

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from ftstan.ft.ownership import StoreOwner
    from ftstan.stores.encryption.cipher import KeyRing
    from ftstan.stores.file.tools.changing import Work

    #: Channels, with how much of each was changed.
    Changed = list[tuple[bytes, int]]

EXIT_CLEAN = 0
EXIT_DAMAGE = 1


@dataclass(frozen=True, slots=True)
class Owned:
    """A datastore that this process owns."""

    owner: StoreOwner
    env: FileEnv
    epochs: EpochFacts


@contextlib.contextmanager
def _owned(arguments: argparse.Namespace, *, repairing: bool = False) -> Iterator[Owned]:
    """Own the datastore as a node does: lock, claim, record. Raises ``FtstanError``."""
    with owning(arguments.dir, repairing=repairing) as (owner, epochs):
        options = FileStoreOptions(crc_polynomial=arguments.crc_poly)
        crc = records.Crc(options.crc_polynomial)
        asking = owner.asking if owner.is_network else None
        env = FileEnv(
            LocalDisk(), owner.root, SystemClock(), options, owner, crc, asking, path=arguments.dir
        )
        yield Owned(owner, env, epochs)


# ---- handover and compact
# ----------------------------------------------------------------------------------------


def handover(arguments: argparse.Namespace) -> int:
    """Leave what an original server would have written."""

    def leave(_env: FileEnv, owner: StoreOwner) -> None:
        # Of one channel alone the others are as they were: with slices that former owners of ours
        # may have open.
        if arguments.channel is None:
            owner.leave_to_original()

    return _rewrite(arguments, "handing over", hand_over_channel, "slices", leave)


def compact(arguments: argparse.Namespace) -> int:
    """Merge small slices."""
    return _rewrite(arguments, "compacting", compact_channel, "slices_removed")


def rekey(arguments: argparse.Namespace) -> int:
    """Encrypt every payload with the first key, or decrypt all."""
    # Before the store is owned: a wrong word must not cost an epoch.
    ring, label, counted = rekey_words(arguments)
    to_plain = arguments.to_plain

    def work(env: FileEnv, only: bytes | None, advance: Callable[[int], None]) -> Changed:
        return rekey_store(env, ring, to_plain=to_plain, only=only, progress=advance)

    return _change(arguments, label, work, counted)


def rekey_words(arguments: argparse.Namespace) -> tuple[KeyRing, str, str]:
    """The keys, what is being done, and what is counted. Raises ``ConfigError``."""
    ring = keys_named(arguments, cipher=arguments.encryption_cipher)
    if ring is None:
        raise ConfigError(
            "encryption key required",
            hint="name the file with --encryption-key-file, the new key in its first line, and the "
            "old ones behind it",
        )
    if arguments.to_plain and arguments.encryption_cipher:
        raise ConfigError(
            "--encryption-cipher and --to-plain exclude each other",
            hint="leave --encryption-cipher out: nothing is encrypted",
        )
    if arguments.to_plain:
        return ring, "decrypting", "messages_decrypted"
    return ring, "encrypting", "messages_encrypted"


def keys_named(arguments: argparse.Namespace, cipher: str = "") -> KeyRing | None:
    """The keys of the file that was named, else that of the environment; ``None`` if there is
    neither.

    Not both: the first key is the one that writes, and it is to be that of the file.

    Raises ``ConfigError``.
    """
    path = arguments.encryption_key_file
    configured = getattr(arguments, "encryption", None)
    if configured is not None and not path:
        return ring_of(configured, os.environ)
    enabled = bool(path or os.environ.get(KEY_VARIABLE))
    options = EncryptionOptions(enabled=enabled, key_file=path, cipher=cipher)
    return ring_of(options, {} if path else os.environ)


def _stop(env: FileEnv, _owner: StoreOwner) -> None:
    """Leave what a clean stop leaves: by it the next start notices an original server's writes.

    Raises ``FtstanError``.
    """
    leave_as_stopped(env)


def _rewrite(
    arguments: argparse.Namespace,
    label: str,
    work: Work,
    counted: str,
    last: Callable[[FileEnv, StoreOwner], None] = _stop,
) -> int:
    def all_of_it(env: FileEnv, only: bytes | None, advance: Callable[[int], None]) -> Changed:
        return rewrite(env, work, only=only, max_bytes=arguments.slice_bytes, progress=advance)

    return _change(arguments, label, all_of_it, counted, last)


def _change(
    arguments: argparse.Namespace,
    label: str,
    work: Callable[[FileEnv, bytes | None, Callable[[int], None]], Changed],
    counted: str,
    last: Callable[[FileEnv, StoreOwner], None] = _stop,
) -> int:
    """``last``: how the store is left when all is done."""
    with _owned(arguments) as owned:
        env = owned.env
        only = _only(arguments, env)
        total = 0
        for name in channel_names(source_of(env))[0] if only is None else [only]:
            with ChannelFiles(source_of(env), name) as files:
                total += sum(s.dat_size for s in files.all)
        with progress(label, total, shown=arguments.output == "table") as advance:
            rows = work(env, only, advance)
        last(env, owned.owner)
    say_changed(arguments, rows, counted)
    return EXIT_CLEAN


def say_changed(arguments: argparse.Namespace, rows: Changed, counted: str) -> None:
    """Say how much of each channel was changed."""
    if arguments.output == "json":
        print_json({"channels": [{"name": text_of(name), counted: count} for name, count in rows]})
        return
    for name, count in rows:
        say(f"{text_of(name)}: {count} {counted.replace('_', ' ')}")


def _only(arguments: argparse.Namespace, env: FileEnv) -> bytes | None:
    """The channel that was asked for, ``None`` for all."""
    if arguments.channel is None:
        return None
    return wanted_channel(arguments.dir, arguments.channel, channel_names(source_of(env))[0])


# ---- repair
# --------------------------------------------------------------------------------------------------


def repair(arguments: argparse.Namespace) -> int:
    """End damage."""
    if arguments.dry_run:
        return _say(arguments, _look(arguments))
    plan = _look(arguments)
    if not plan.findings:
        return _report(arguments, [], "", [])
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = arguments.aside or f"{os.path.abspath(arguments.dir)}.repair-{now}"
    with _owned(arguments, repairing=True) as owned:
        env = owned.env
        # Looked at again: what was read before the store was ours may have been another owner's
        # last words.
        source = source_to_judge(env)
        plan = make_plan(source, _only(arguments, env))
        done: list[tuple[str, str]] = []
        if owned.epochs.loss:
            done.append(
                (
                    "ft.epoch",
                    f"took an epoch above {owned.epochs.lost.floor if owned.epochs.lost else 0}",
                )
            )
        aside = open_aside(env.disk, path)
        try:
            done += [(step.file, step.text) for step in Repair(env, source, aside).run(plan)]
        finally:
            env.disk.close(aside)
        quarantined = start_and_stop(env)
    return _report(arguments, done, path, quarantined)


def _look(arguments: argparse.Namespace) -> Plan:
    """The plan of somebody who only reads."""
    disk = LocalDisk()
    root = disk.open_dir(arguments.dir)
    try:
        epochs = find_epochs(disk, root, looking=True)
        source = source_at(disk, root, records.Crc(arguments.crc_poly), epochs)
        only = None
        if arguments.channel is not None:
            only = wanted_channel(arguments.dir, arguments.channel, channel_names(source)[0])
        plan = make_plan(source, only)
        if epochs.loss:
            plan.findings.setdefault(b"", []).insert(
                0, StoreFinding(DefectKind.DAMAGE, b"", "ft.epoch", epochs.loss)
            )
        return plan
    finally:
        disk.close(root)


def _say(arguments: argparse.Namespace, plan: Plan) -> int:
    rows = [(step.file, step.text) for step in plan.steps]
    if arguments.output == "json":
        print_json(
            {"dry_run": True, "steps": [{"file": file, "text": text} for file, text in rows]}
        )
    else:
        for file, text in rows:
            say(f"{file}: {text}")
        say("nothing was changed" if rows else "nothing to repair")
    return EXIT_DAMAGE if plan.damaged else EXIT_CLEAN


def _report(
    arguments: argparse.Namespace, done: list[tuple[str, str]], aside: str, quarantined: list[str]
) -> int:
    if arguments.output == "json":
        steps = [{"file": file, "text": text} for file, text in done]
        print_json({"dry_run": False, "steps": steps, "aside": aside, "quarantined": quarantined})
    else:
        for file, text in done:
            say(f"{file}: {text}")
        say(f"what was there before is in {aside}" if done else "nothing to repair")
        if quarantined:
            say(f"still quarantined: {', '.join(quarantined)}", file=sys.stderr)
    return EXIT_DAMAGE if quarantined else EXIT_CLEAN
