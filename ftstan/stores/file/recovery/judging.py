"""What counts of a channel's slices, what is damage, and what must be copied or cut before the
channel is served.

A slice of ours ends every lower one at its own first sequence; slices of the original are ordered
by sequence and merged where they hold the same records. One of ours of which only the index is left
ends the lower ones all the same, and what it names is damage. An index entry proves its record;
what lies behind the last provable entry of the highest slice may never have been synced, and is
copied into a slice of ours before anybody sees it. What cannot have been acknowledged is read
around and ended by a slice of ours, or cut where an original wrote it; everything else that is bad
is damage, and then nothing is written at all: the channel is quarantined. The last sequence never
goes back (``docs/store.md``, damage).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.base.log import stream as log
from ftstan.stores.file.env import TEMPORARY, FileEnv, is_full
from ftstan.stores.file.log import exact, records
from ftstan.stores.file.log.view import Slice, dat_name, idx_name, show
from ftstan.stores.file.recovery import damage, lost
from ftstan.stores.file.recovery.leftovers import is_leftover, remove_leftover
from ftstan.stores.file.recovery.measure import (
    Found,
    Measured,
    bad_of,
    bytes_of,
    dense,
    entries_of,
    went_on,
)
from ftstan.stores.file.regular import open_file
from ftstan.stores.file.stretch import is_blank

if TYPE_CHECKING:
    from ftstan.stores.file.log.slices import SliceLog
    from ftstan.stores.file.recovery.damage import Bad
    from ftstan.wire.block import MsgBlock

_TEMPORARY = re.compile(
    re.escape(TEMPORARY)
    + r"[0-9]+\.((msgs\.-?[0-9]+\.)?(dat|idx)|(subs|clients|server)\.dat"
    + r"|(confirmed|purged|moved|ckpt|dedup)\.bin|deleting|repaired\.json)\Z"
)


def remove_temporaries(env: FileEnv, dirfd: int) -> None:
    """Unlink what former owners had not made visible: a late link or rename of theirs then finds no
    source.

    What NFS clients left of files that lost their names goes, too. Raises ``OSError`` and
    ``FencedError``.
    """
    files = [name for name, is_dir in env.disk.listdir(dirfd) if not is_dir]
    names = [name for name in files if _TEMPORARY.match(name)]
    left = [name for name in files if is_leftover(name)]
    if names or left:
        # Listed, then confirmed: so none of them is a successor's, who would find its batch without
        # its file.
        env.owner.confirm()
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            env.disk.unlink(dirfd, name)
    for name in left:
        remove_leftover(env.disk, dirfd, name)


@dataclass(slots=True)
class ChannelVerdict:
    """What is to be made of a channel.

    ``pieces``: slices that count, each with its last sequence that does.

    ``last``: the channel's last sequence, higher than that of the pieces where messages are missing
    at the end. ``ends``: what ends a file of ours and cannot have been acknowledged, ``cuts``: the
    same of an original's, or what the operator has cut. ``damage``: (file, what is wrong); not
    empty: quarantine. ``hiding``: numbers of slices of ours that have other contents for what was
    confirmed below them, and hide none of that. ``passed``: slices of an original with the last of
    their sequences that it took for nothing, and the slice in which it went on. ``strict``: an
    entry in an index of ours proves that its data was durable. ``seals``: slices of ours without a
    record that end lower ones, by number. ``left_out``: those that do not, because an original
    server may have gone on below them since.
    """

    pieces: list[tuple[Found, int]] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    last: int = 0
    ends: list[tuple[Found, Bad]] = field(default_factory=list)
    cuts: list[tuple[Found, Bad]] = field(default_factory=list)
    damage: list[tuple[str, str]] = field(default_factory=list)
    hiding: set[int] = field(default_factory=set)
    strict: bool = True
    passed: list[tuple[Found, int, Found]] = field(default_factory=list)
    seals: dict[int, lost.Seal] = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)

    def following(self, f: Found, after: Found | None) -> int | None:
        """The first sequence that a slice cannot have, because higher ones begin there; ``after``:
        the next one that counts.
        """
        firsts = [seal.first for number, seal in self.seals.items() if number > f.number]
        return min([*firsts, after.first] if after else firsts, default=None)


def judge(env: FileEnv, slog: SliceLog, m: Measured) -> ChannelVerdict:
    """Decide what counts: reads where two slices hold the same sequences, writes nothing.

    ``OSError`` passes.
    """
    options = env.options
    was_synced = m.confirmed is None or m.confirmed.synced
    proves = was_synced and options.sync and not options.truncate_bad_eof
    v = ChannelVerdict(damage=list(m.problems), strict=proves and not m.foreign)
    ours = env.owner.ours_from
    v.dead = {f.number for f in m.found if f.empty}
    live = [f for f in m.found if not f.empty]
    for f in m.found:
        if f.empty and f.why:
            # Nothing shows where its sequences end: to serve without it could give them out a
            # second time.
            _judge_end(env, slog, v, f, above=all(f.number > other.number for other in live))
    sealed = _seal(env, slog, v, m, live)
    _check_confirmed_seals(env, slog, v, m, live)
    v.pieces = _merge(env, slog, v, [p for p in sealed if p[0].number < ours])
    v.pieces += [p for p in sealed if p[0].number >= ours]
    for (f, last), after in itertools.zip_longest(v.pieces, v.pieces[1:]):
        _judge_piece(env, slog, v, f, last, following=v.following(f, after[0] if after else None))
    if proves:
        _judge_lost(v)
    _judge_last(env, v, m)
    taken = m.highest_taken(env.highest_number)
    if taken >= env.highest_number and v.pieces and _is_copied(env, v.pieces[-1][0]):
        v.damage.append(
            (dat_name(taken), "its number leaves no room for a copy of what may not be durable")
        )
    return v


def _is_copied(env: FileEnv, f: Found) -> bool:
    """Whether the records of the newest slice that nothing proves are to be copied into a slice of
    ours.

    What is numbered higher than we can get to is no former owner's of ours: like an original
    server's it is synced. That is not enough where a sync commits nothing that another host wrote.
    """
    is_copied = _is_former_owners(env, f) or (env.is_remembered and f.number < env.highest_number)
    return len(f.tail) > 0 and (f.scattered or is_copied)


def _is_former_owners(env: FileEnv, f: Found) -> bool:
    """Whether a former owner of ours may have the slice open, and a slice of ours can be numbered
    above it.
    """
    return env.owner.ours_from <= f.number < env.highest_number


def _seal(
    env: FileEnv, slog: SliceLog, v: ChannelVerdict, m: Measured, live: list[Found]
) -> list[tuple[Found, int]]:
    """The slices that count, each with its last sequence that does.

    A slice of ours ends every lower-numbered one at its own first sequence, also one of which only
    the index is left; one that has nothing left is dead.
    """
    out: list[tuple[Found, int]] = []
    end: int | None = None
    there = {f.number: f for f in live}
    for number in sorted({*there, *_find_lost(env, v, m, list(there))}, reverse=True):
        f = there.get(number)
        if f is None:
            below = there.get(max((n for n in there if n < number), default=number))
            index = entries_of(env, slog.dirfd, below) if below is not None else b""
            seal = lost.find_seal(number, m.lost[number], index, m.confirmed, end)
            if seal is not None:
                v.seals[number] = seal
                end = seal.first
            continue
        if end is not None and f.first >= end:
            v.dead.add(f.number)
            continue
        out.append((f, f.last if end is None else min(f.last, end - 1)))
        if f.number >= env.owner.ours_from:
            end = f.first
    out.reverse()
    return out


def _find_lost(env: FileEnv, v: ChannelVerdict, m: Measured, live: list[int]) -> list[int]:
    """Numbers of the slices without a record that end lower ones."""
    found = []
    filled = [f.number for f in m.found if f.why or not f.empty]
    for number in m.lost:
        if number < env.owner.ours_from or not lost.may_end(number, filled):
            continue
        if lost.is_sure(number, live, m.confirmed, foreign=m.foreign):
            found.append(number)
        else:
            v.left_out.append(number)
    return found


def _judge_lost(v: ChannelVerdict) -> None:
    """What the index of a slice without records names was durable, and may be acknowledged."""
    told = {file for file, _ in v.damage}
    for number, seal in sorted(v.seals.items()):
        if seal.is_damage and dat_name(number) not in told:
            v.damage.append((dat_name(number), seal.words))


def _check_confirmed_seals(
    env: FileEnv, slog: SliceLog, v: ChannelVerdict, m: Measured, live: list[Found]
) -> None:
    """A slice that came after the last confirm and begins at or below it must hold the same
    records: a copied tail.
    """
    confirmed = m.confirmed
    if confirmed is None:
        return
    late = [
        f
        for f in live
        if f.number >= env.owner.ours_from
        and f.number > confirmed.slice_number
        and f.first <= confirmed.sequence
    ]
    before = _counted(env, slog, m, live, confirmed.slice_number) if late else []
    for f in late:
        if any(_differs(env, slog, f, low, min(confirmed.sequence, last)) for low, last in before):
            v.hiding.add(f.number)
            words = (
                f"begins at sequence {f.first}, and {confirmed.sequence} was confirmed in "
                f"{dat_name(confirmed.slice_number)}"
            )
            v.damage.append((dat_name(f.number), words))


def _counted(
    env: FileEnv, slog: SliceLog, m: Measured, live: list[Found], through: int
) -> list[tuple[Found, int]]:
    """What counted when ``through`` was the newest slice: each slice with its last sequence that
    did.

    Behind that may lie what a former owner wrote late, or one was refused: nobody was promised it.
    """
    then = replace(m, lost={number: index for number, index in m.lost.items() if number <= through})
    v = ChannelVerdict()
    sealed = _seal(env, slog, v, then, [f for f in live if f.number <= through])
    ours = env.owner.ours_from
    pieces = _merge(env, slog, v, [p for p in sealed if p[0].number < ours])
    return pieces + [p for p in sealed if p[0].number >= ours]


def _differs(env: FileEnv, slog: SliceLog, f: Found, lower: Found, last: int) -> bool:
    """Whether two slices have other contents for the sequences up to ``last`` that both may
    have.
    """
    first = max(f.first, lower.first)
    if first > last:
        return False
    before = bytes_of(env, slog.dirfd, lower, first, last)
    return before != b"" and before != bytes_of(env, slog.dirfd, f, first, last)


def _merge(
    env: FileEnv, slog: SliceLog, v: ChannelVerdict, pieces: list[tuple[Found, int]]
) -> list[tuple[Found, int]]:
    """Slices of the original in the order of their sequences.

    Where two hold the same, one of them is shortened.
    """
    out: list[tuple[Found, int]] = []
    for f, last in sorted(pieces, key=lambda p: (p[0].first, -p[1], p[0].number)):
        if out and f.first <= out[-1][1]:
            before, before_last = out[-1]
            until = min(last, before_last)
            if bytes_of(env, slog.dirfd, f, f.first, until) != bytes_of(
                env, slog.dirfd, before, f.first, until
            ):
                if (
                    env.options.sync
                    and before.is_index_whole
                    and before.number < f.number
                    and went_on(before.first, before_last, before.claimed, f.first)
                ):
                    v.passed.append((before, before_last, f))
                    out[-1] = (before, f.first - 1)
                    out.append((f, last))
                    continue
                v.damage.append(
                    (
                        dat_name(f.number),
                        (
                            f"sequences {f.first} to {until} have another content than in "
                            f"{dat_name(before.number)}"
                        ),
                    )
                )
                continue
            if last <= before_last:
                v.dead.add(f.number)
                continue
            # Of two that begin together the longer one comes first.
            out[-1] = (before, f.first - 1)
        out.append((f, last))
    return out


def _judge_piece(
    env: FileEnv, slog: SliceLog, v: ChannelVerdict, f: Found, last: int, *, following: int | None
) -> None:
    """Look at how the records of a slice end; ``following``: the first sequence of the next one."""
    missing = f.claimed > f.last if following is None else last == f.last and last < following - 1
    mine = f.number >= env.owner.ours_from
    if f.why and (following is None or missing):
        _judge_end(env, slog, v, f, above=following is None)
    elif missing and mine and f.claimed > last and v.strict:
        # Our entries are written after the sync of their data: these messages were durable, and may
        # be acknowledged.
        v.damage.append(
            (
                dat_name(f.number),
                f"sequences {last + 1} to {f.claimed} are missing at offset {f.bad_at}",
            )
        )


def _judge_end(env: FileEnv, slog: SliceLog, v: ChannelVerdict, f: Found, *, above: bool) -> None:
    """The records of a slice end with something bad: is it to be cut?

    ``above``: nothing that counts lies above it.
    """
    bad = bad_of(env, slog.name, f)
    mine = f.number >= env.owner.ours_from
    promised = mine and v.strict and (f.claimed > f.last or f.empty)
    told_to = env.options.truncate_bad_eof and f.why == "torn"
    unacknowledged = above and not promised and bad.unpromised and not _contradicts(env, slog, f)
    if unacknowledged and _is_former_owners(env, f):
        v.ends.append((f, bad))
    elif unacknowledged or told_to:
        v.cuts.append((f, bad))
    else:
        v.damage.append((dat_name(f.number), f"{bad.words} at offset {f.bad_at}"))


def _contradicts(env: FileEnv, slog: SliceLog, f: Found) -> bool:
    """Whether what follows the records of a slice gives other contents to sequences that they have
    already.
    """
    again, end, _ = records.scan_data(f.rest, slog.name, 0, env.crc, env.options.check_crc)
    if not len(again) or again.first > f.last:
        return False
    return f.rest[:end] != bytes_of(env, slog.dirfd, f, again.first, again.last)


def _judge_last(env: FileEnv, v: ChannelVerdict, m: Measured) -> None:
    """Where the channel ends: at its last message, or behind messages that something still
    names.
    """
    there = v.pieces[-1][1] if v.pieces else 0
    top = max((f.number for f, _ in v.pieces), default=0)
    claims = [f.claimed for f in m.found if f.number >= top]
    claims += [last for number, last in m.orphans if number > top]
    v.last = max([there, *claims, *(seal.last for seal in v.seals.values())])
    confirmed = m.confirmed
    if confirmed is not None:
        v.last = max(v.last, confirmed.last)
        if confirmed.synced and confirmed.sequence > there and not env.options.truncate_bad_eof:
            v.damage.append(
                (
                    dat_name(confirmed.slice_number),
                    f"sequence {confirmed.sequence} was confirmed and the log ends at {there}",
                )
            )


# ---- acting on it
# --------------------------------------------------------------------------------------------------


def rename_odd(env: FileEnv, slog: SliceLog, m: Measured) -> None:
    """Give every slice the name that everybody writes for its number.

    Raises ``OSError`` and ``FencedError``.
    """
    for number, old in m.odd.items():
        new = dat_name(number)
        env.owner.confirm()
        env.disk.rename(slog.dirfd, old, new)
        env.disk.fsync(slog.dirfd)
        log.warning(f'channel "{show(slog.name)}": {old} is now named {new}')


def report_damage(env: FileEnv, slog: SliceLog, m: Measured, v: ChannelVerdict) -> None:
    """Write the block of lines for each bad record of the slices that are damaged."""
    files = {file for file, _ in v.damage}
    for f in m.found:
        if f.why and dat_name(f.number) in files:
            damage.report(env, bad_of(env, slog.name, f), cut=False)


def settle(env: FileEnv, slog: SliceLog, m: Measured, v: ChannelVerdict) -> None:
    """Cut and copy what must be, and hand the slices of an undamaged channel to ``slog``.

    What ends a slice of ours is read around: ``end_what_was_torn`` comes next. Raises ``OSError``
    and ``FencedError``.
    """
    for f, bad in v.cuts:
        _report_cut(env, f, bad)
        damage.cut(env, slog.dirfd, dat_name(f.number), bad)
    for f in m.found:
        if f.unfilled:
            log.warning(
                f'channel "{show(slog.name)}": {dat_name(f.number)} has {f.size} bytes, it was '
                "never filled"
            )
    _report_holes(slog, v)
    for f, last, later in v.passed:
        log.warning(
            f'channel "{show(slog.name)}": {dat_name(f.number)} has records of sequences '
            f"{later.first} to {last} that its index does not name, and {dat_name(later.number)} "
            "others, which are served: an original server was killed and went on there"
        )
    for f, _ in v.pieces[:-1]:
        if f.scattered:
            _put_dense(env, slog, f)
    tail: MsgBlock | None = None
    slices: list[Slice] = []
    for f, last in v.pieces:
        is_copied = False
        if f is v.pieces[-1][0] and last > f.proven.last:
            is_copied = _is_copied(env, f)
            if is_copied:
                tail = f.tail if last == f.last else records.cut(f.tail, last)
            else:
                sync(env, slog, f.number)
        if not is_copied:
            slices.append(_summary(env, slog, f, last))
        elif f.proven.count:
            slices.append(_summary(env, slog, f, f.proven.last))
        else:
            v.dead.add(f.number)
    taken = m.highest_taken(env.highest_number)
    slog.adopt(
        slices, v.dead, m.highest, taken=taken, synced=m.confirmed is None or m.confirmed.synced
    )
    if tail is not None:
        slog.copy_tail(tail)
    if v.last > slog.last:
        slog.last = v.last
        if not slog.count:
            slog.first = v.last + 1


def _report_cut(env: FileEnv, f: Found, bad: Bad) -> None:
    if f.why == "zeros" or is_blank(bad.rest):
        log.warning(f'File "{env.shown(bad.shown)}" ends with zeros from offset {bad.offset} on')
    else:
        damage.report(env, bad, cut=True)


def end_what_was_torn(env: FileEnv, slog: SliceLog, v: ChannelVerdict) -> None:
    """Have a slice of ours end those whose torn end is read around; what ended them is saved first.

    Their files stay as they are. A former owner that stood still within the write may finish it,
    and name it in its index: that is behind the slice of ours then, or, before there is one, whole,
    and nobody was told of it. Were it cut in place, such an entry would name what is not there, and
    a cut that comes late take what a later owner believes.

    Without space nothing more is done: the next start finds the same. Raises ``OSError`` and
    ``FencedError``.
    """
    for f, bad in v.ends:
        _report_cut(env, f, bad)
        saved = damage.keep(env, slog.dirfd, dat_name(f.number), bad)
        if saved is None:
            continue
        try:
            if f.empty:
                # There is no record that could end it. Whoever has it open writes into a file
                # without a name.
                exact.put_file(
                    env,
                    slog.dirfd,
                    dat_name(f.number),
                    lambda fd: env.disk.pwrite(fd, records.VERSION, 0),
                )
            else:
                slog.end_inherited()
                slog.park()
        except OSError as error:
            if not is_full(error):
                raise
            damage.say_not_cut(env, bad, "no space for another slice")
        except StoreError as error:
            damage.say_not_cut(env, bad, error.text)
        else:
            damage.say_cut(env, bad, saved)


def forget_left_out(env: FileEnv, slog: SliceLog, v: ChannelVerdict) -> None:
    """Empty the indexes of slices that end nothing because an original server has gone on below
    them: the next start does not know that any more.

    Call it when ``confirmed.bin`` says the last sequence. Without space nothing is done. Raises
    ``OSError`` and ``FencedError``.
    """
    try:
        for number in v.left_out:
            exact.put_file(env, slog.dirfd, idx_name(number), exact.empty)
    except OSError as error:
        if not is_full(error):
            raise


def _put_dense(env: FileEnv, slog: SliceLog, f: Found) -> None:
    """Put the records of a slice into one piece, in a new file: its index is not ours, and says so
    only to us.
    """
    whole = dense(env, slog.dirfd, f)
    exact.put_file(env, slog.dirfd, dat_name(f.number), lambda fd: env.disk.pwrite(fd, whole, 0))
    log.warning(
        f'channel "{show(slog.name)}": {dat_name(f.number)} had records that its index passes '
        "over; they were removed"
    )


def _report_holes(slog: SliceLog, v: ChannelVerdict) -> None:
    """One error line for each hole in the sequences; the log is served around it."""
    channel = show(slog.name)
    for (low, last), (high, _) in itertools.pairwise(v.pieces):
        if high.first != last + 1:
            log.error(
                f'channel "{channel}": sequences {last + 1} to {high.first - 1} are missing '
                "between "
                f"{dat_name(low.number)} (offset {low.bad_at}) and {dat_name(high.number)}; "
                "serving around them"
            )
    for f, last in v.pieces:
        if last == f.last and last - f.first + 1 != f.proven.count + len(f.tail):
            log.error(
                f'channel "{channel}": {last - f.first + 1 - f.proven.count - len(f.tail)} '
                f"sequences between {f.first} "
                f"and {last} are missing in {dat_name(f.number)} (up to offset {f.bad_at}); "
                "serving around them"
            )
    there, end = (v.pieces[-1][1], v.pieces[-1][0].bad_at) if v.pieces else (0, 0)
    if v.last > there:
        after = (
            f"{dat_name(v.pieces[-1][0].number)} (offset {end})" if v.pieces else "the beginning"
        )
        log.error(
            f'channel "{channel}": sequences {there + 1} to {v.last} are missing behind {after}, '
            "an index names them; "
            f"serving without them, the next message gets sequence {v.last + 1}"
        )


def _summary(env: FileEnv, slog: SliceLog, f: Found, last: int) -> Slice:
    """The summary of one slice up to sequence ``last``."""
    scan = f.proven
    if last == scan.last:
        return Slice(
            f.number,
            scan.first,
            last,
            scan.first_ts,
            scan.last_ts,
            scan.count,
            scan.end,
            scan.contiguous,
        )
    # What the index file does not say, or says too much of, is kept in memory: the file is not ours
    # to write.
    index = entries_of(env, slog.dirfd, f)
    index = index[: records.find_entry(index, last + 1) * records.INDEX_SIZE]
    scan = records.scan_index(index, env.crc)
    named = f.proven.count >= scan.count
    return Slice(
        f.number,
        scan.first,
        scan.last,
        scan.first_ts,
        scan.last_ts,
        scan.count,
        scan.end,
        scan.contiguous,
        None if named else index,
    )


def sync(env: FileEnv, slog: SliceLog, number: int) -> None:
    """Make a slice durable that is not ours to copy: what it holds behind its index is about to be
    delivered.
    """
    fd = open_file(env.disk, slog.dirfd, dat_name(number), os.O_RDWR)
    try:
        env.disk.fsync(fd)
    finally:
        env.disk.close(fd)
