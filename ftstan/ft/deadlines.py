"""Deadlines: how long each part of a node may take before something is done about it, in seconds.

The only place that knows them; the budget with its sums is a table in ``docs/ft.md``. What an
operator can choose (heartbeats, suspicion, polls, probes, the NATS timeout) has its defaults in
``config/options.py``.
"""

from __future__ import annotations

#: A probe of the storage, or the oldest batch, that takes so long: heartbeats stop, so that the
#: others may look.
PROBE_QUIET_S = 3.0
BATCH_QUIET_S = 10.0
#: ... and so long: the process ends. A batch may touch a thousand files on a slow disk, a probe
#: touches one.
PROBE_DIE_S = 10.0
BATCH_DIE_S = 30.0
#: ... or one call of it that has not returned. Where calls are seen to return, a batch may take
#: longer: storage is slow then, and does not hang.
CALL_QUIET_S = BATCH_QUIET_S
CALL_DIE_S = 30.0
SLOW_BATCH_DIE_S = 120.0
#: The same for who has the lock and is no owner yet: claim and record are a few syncs. Of a survey
#: (the first epoch of a store) each channel has so long.
TAKE_DIE_S = 30.0

#: How often the control loop judges. A turn that comes later than ``LATE_TURN_S`` was late itself:
#: a process that was paused learns nothing about its storage from the time that went by.
JUDGE_EVERY_S = 0.25
LATE_TURN_S = 1.0

#: A clean stop of an owner: what was accepted is written and the lock is given back.
STOP_S = 60.0
#: Before it, of a successor: its takeover goes on until what it kept for publishers is answered.
FINISH_S = 10.0
#: Behind it: NATS reads the last answers.
LAST_ANSWERS_S = 1.0
#: A stop of a node that owns nothing: it has nothing to write, and waits for storage out of
#: politeness only.
STOP_UNOWNED_S = 0.5
#: The end of the watch thread at a clean stop.
WATCH_STOP_S = 2.0
#: The last line of a process that ends: the log may lie on the storage that hangs.
LAST_WORDS_S = 1.0

#: The pause after an activation that storage refused: doubled with every refusal in a row,
#: randomised.
FIRST_BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 60.0

#: How long a member holds back at most for others that were named, before it asks for the lock
#: itself once more.
LONGEST_YIELD_S = 15.0
