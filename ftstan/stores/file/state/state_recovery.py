"""Reading the state files at a start, whatever state they are in: ``server.dat``, ``clients.dat``,
``subs.dat``.

What ends a file and cannot have been answered for is cut; damage in the middle of ``clients.dat``
costs the clients that cannot be read, damage in ``subs.dat`` the channel's freedom to write, damage
in ``server.dat`` the start. A file of up to three bytes, or of four that are zeros, counts as
absent: its creation was cut short before anything was stored in it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ftstan.base.errors import RecoveryError, WireError
from ftstan.base.log import stream as log
from ftstan.stores import protos
from ftstan.stores.file.env import is_full
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import show
from ftstan.stores.file.recovery import damage
from ftstan.stores.file.recovery.damage import Bad
from ftstan.stores.file.regular import IrregularError
from ftstan.stores.file.state import state_records, subreplay
from ftstan.stores.file.state.confirmed import epoch_of
from ftstan.stores.file.state.statefile import (
    Seen,
    check_version,
    is_unfilled,
    look_at,
    read_file,
    replace_file,
)
from ftstan.stores.file.stretch import is_blank

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.interface import ClientInfo, ServerInfo, StoredSub

_START = records.VERSION_SIZE
_ADVICE = (
    "docs/store.md (repair guide); a copy of server.dat from a backup of this datastore will do"
)


# ---- server.dat
# --------------------------------------------------------------------------------------------------


def read_server(env: FileEnv) -> ServerInfo | None:
    """What ``server.dat`` says; ``None`` if it never told anybody a subject.

    Raises ``RecoveryError``.
    """
    data = read_file(env, env.root, "server.dat")
    if data is None or len(data) <= _START or len(data) == _START + records.HEADER_SIZE:
        # Absent, or cut short before its record was written.
        return None
    shown = "server.dat"
    wrong = check_version(data)
    if not wrong:
        shown = env.shown(shown)
        wrong = _wrong_server(env, data)
        if wrong:
            log.error(f'Server file "{shown}" corrupted: {wrong}')
            log.error("Follow instructions in documentation in order to recover from this")
    info: ServerInfo | None = None
    if not wrong:
        try:
            info = protos.decode_server(data[_START + records.HEADER_SIZE :])
        except WireError as error:
            wrong = error.text
    if wrong:
        raise RecoveryError(f'unable to recover server file "{shown}": {wrong}', hint=_ADVICE)
    return info


def _wrong_server(env: FileEnv, data: bytes) -> str:
    head = data[_START : _START + records.HEADER_SIZE]
    size = int.from_bytes(head[:4], "little")
    expected = _START + records.HEADER_SIZE + size
    if len(head) < records.HEADER_SIZE or (any(head) and len(data) < expected):
        return "unexpected EOF"
    if not any(head):
        return "end of file padded with zeros"
    payload = data[_START + records.HEADER_SIZE : expected]
    stored = int.from_bytes(head[4:], "little")
    if len(data) != expected:
        return f"incorrect file size, expected {expected} bytes, got {len(data)} bytes"
    if env.options.check_crc and (got := env.crc(payload)) != stored:
        return f"corrupted data, expected crc to be 0x{stored:08x}, got 0x{got:08x}"
    return ""


# ---- clients.dat
# --------------------------------------------------------------------------------------------------


class ClientsAsRead(NamedTuple):
    """The clients that are registered, and the bytes that say so; ``None``: no file."""

    clients: dict[bytes, ClientInfo]
    data: bytes | None


def read_clients(env: FileEnv, before: ClientsAsRead | None = None) -> ClientsAsRead:
    """The clients that are registered, as far as they can be read.

    Raises ``RecoveryError``, ``OSError``.

    ``before``: what was read before; it is told, and cut, only if the file is another one now.
    """
    data = read_file(env, env.root, "clients.dat")
    if before is not None and data == before.data:
        return before
    clients = _clients_of(env, data)
    return ClientsAsRead(clients, data)


def _clients_of(env: FileEnv, data: bytes | None) -> dict[bytes, ClientInfo]:
    name = "clients.dat"
    if data is None or is_unfilled(data):
        if data is not None:
            log.warning(f'"{name}" has {len(data)} bytes: it was created and never filled')
        return {}
    if wrong := check_version(data):
        raise RecoveryError(
            f'unable to recover client file "{name}": {wrong}', hint="run: ftstanctl store verify"
        )
    clients: dict[bytes, ClientInfo] = {}
    lost = 0
    at = _START
    while True:
        rows, used, why = records.scan_typed(data[at:], env.crc, env.options.check_crc)
        lost += _apply(clients, rows, at)
        at += used
        if not why:
            break
        bad = _bad(env, name, at, why, data)
        if bad.unpromised or (env.options.truncate_bad_eof and why == "torn"):
            _cut(env, env.root, name, bad)
            break
        lost += 1
        damage.report(env, bad, cut=False)
        log.error(
            f'"{name}": the record at offset {at} cannot be read ({bad.words}): a client in it '
            "is lost"
        )
        pos = _next(env, bad.rest, 0, records.CLIENT_DELETE)
        if pos < 0:
            break
        at += pos
    if lost:
        # The next write replaces the file: what cannot be read now may be worth something to
        # somebody later.
        saved = f"{damage.SAVED}{epoch_of(env)}.{name}"
        damage.save(env, env.root, saved, data)
        log.error(
            f'"{name}": {lost} records cannot be read; the file as it was is kept as "{saved}"'
        )
    return clients


def _apply(clients: dict[bytes, ClientInfo], rows: list[tuple[int, bytes]], at: int) -> int:
    """Replay records of ``clients.dat`` from offset ``at`` on; returns how many are none."""
    lost = 0
    for kind, payload in rows:
        try:
            state_records.replay_client(clients, kind, payload)
        except WireError as error:
            lost += 1
            log.error(
                f'"clients.dat": the record at offset {at} cannot be read ({error.text}): it is '
                "passed over"
            )
        at += records.HEADER_SIZE + len(payload)
    return lost


# ---- subs.dat
# --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Subs:
    """What a ``subs.dat`` says: subscriptions by id, and the highest id ever seen.

    ``cut``: what ends the file and is to be cut; ``damage``: what cannot be read, in the original's
    words.
    """

    subs: dict[int, StoredSub] = field(default_factory=dict)
    highest: int = 0
    cut: Bad | None = None
    damage: list[Bad] = field(default_factory=list)
    wrong: str = ""

    def clamp(self, last: int) -> None:
        """Forget sequences above ``last``: a record may name one that a crash took back, and that
        nobody received.
        """
        for stored in self.subs.values():
            stored.pending = {s for s in stored.pending if s <= last}
            if stored.state.last_sent > last:
                stored.state = replace(stored.state, last_sent=last)


def look_at_subs(env: FileEnv, channel: bytes) -> Seen | None:
    """How far a channel's ``subs.dat`` has come; ``None`` if nothing can be said of it."""
    try:
        dirfd = env.disk.open_dir_at(env.root, os.fsdecode(channel))
        try:
            return look_at(env, dirfd, "subs.dat")
        finally:
            env.disk.close(dirfd)
    except OSError:
        # There is none, or whoever opens the channel will hear why.
        return None


def read_subs(env: FileEnv, channel: bytes, dirfd: int, seen: Seen | None = None) -> Subs:
    """Read a channel's ``subs.dat``; writes nothing. ``OSError`` passes through.

    ``seen``: how far it had come when the store became ours. What a former owner has put behind
    that was never answered, and may go with clients that are known here.
    """
    found = Subs()
    try:
        data = read_file(env, dirfd, "subs.dat", seen)
    except IrregularError as error:
        found.wrong = error.words
        return found
    if data is None:
        return found
    shown = f"{show(channel)}/subs.dat"
    if is_unfilled(data):
        log.error(
            f'"{shown}" has {len(data)} bytes: it was created and never filled; subscriptions in '
            "it are lost"
        )
        return found
    if wrong := check_version(data):
        found.wrong = wrong
        return found
    replay(env, shown, data, found)
    return found


def replay(env: FileEnv, shown: str, data: bytes, found: Subs) -> None:
    """Fill ``found`` from the bytes of a ``subs.dat``."""
    state_of = subreplay.SubReplay(env.crc, env.options.check_crc)
    at = _START
    while True:
        at, why = state_of.feed(data, at)
        if not why:
            break
        bad = _bad(env, shown, at, why, data)
        if bad.unpromised or (env.options.truncate_bad_eof and why == "torn"):
            found.cut = bad
            break
        found.damage.append(bad)
        pos = _next(env, data, at, records.SUB_MSG)
        if pos < 0:
            break
        at = pos
    found.highest = state_of.highest
    found.subs = state_records.stored_subs(state_of)


def cut_subs(env: FileEnv, dirfd: int, bad: Bad) -> None:
    """Take away what ends a ``subs.dat``. Raises ``OSError`` and ``FencedError``."""
    _cut(env, dirfd, "subs.dat", bad)


def _bad(env: FileEnv, shown: str, at: int, why: str, data: bytes) -> Bad:
    kinds = records.CLIENT_DELETE if shown == "clients.dat" else records.SUB_MSG
    following = _next(env, data, at, kinds)
    is_between = following == records.search_from_typed(data, at, kinds, env.crc)
    return Bad(
        shown, at, why, data[at:], max(following - at, -1), is_between=is_between, typed=True
    )


def _next(env: FileEnv, data: bytes, at: int, kinds: int) -> int:
    """Where the next whole record begins behind the bad one at ``at``; -1: none does."""
    behind = records.search_from_typed(data, at, kinds, env.crc)
    return records.next_typed(data, behind, kinds, env.crc)


def _cut(env: FileEnv, dirfd: int, name: str, bad: Bad) -> None:
    """Replace a state file by its whole records: its former owner, and a start that stood still,
    have another one open.

    Without space the file is left as it is: this activation replaces it before it writes to it, all
    the same.
    """
    if is_blank(bad.rest):
        log.warning(f'File "{env.shown(bad.shown)}" ends with zeros from offset {bad.offset} on')
    else:
        damage.report(env, bad, cut=True)
    saved = damage.keep(env, dirfd, name, bad)
    if saved is None:
        return
    whole = (read_file(env, dirfd, name) or b"")[: bad.offset]
    try:
        env.disk.close(replace_file(env, dirfd, name, whole))
    except OSError as error:
        if not is_full(error):
            raise
        damage.say_not_cut(env, bad, "no space for another file")
    else:
        damage.say_cut(env, bad, saved)


# ---- the marker of -file_truncate_bad_eof
# ----------------------------------------------------------------------------

MARKER = ".truncate.lck"


def check_marker(env: FileEnv) -> None:
    """Let the truncating option work once: the next start must be one without it.

    Raises ``RecoveryError``.

    Called by the owner of the store only: a standby must not touch the marker of the active server.
    """
    disk = env.disk
    if env.options.truncate_bad_eof:
        env.owner.confirm()
        try:
            fd = disk.open(env.root, MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError as error:
            raise RecoveryError(
                "file store should not be opened consecutively with the TruncateUnexpectedEOF "
                "option set to true",
                hint="start once without -file_truncate_bad_eof",
            ) from error
        disk.close(fd)
        disk.fsync(env.root)
        return
    try:
        disk.stat(env.root, MARKER)
    except FileNotFoundError:
        return
    env.owner.confirm()
    disk.unlink(env.root, MARKER)
    disk.fsync(env.root)
