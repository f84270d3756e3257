"""Who judges the mutants of which module."""

from __future__ import annotations

#: The quick tests that judge each module, the quickest and nearest first: files below tests/unit.
JUDGES: dict[str, tuple[str, ...]] = {
    "ftstan.ft.access": ("ft/test_access.py", "ft/test_late_mounts.py", "ft/test_mountcheck.py"),
    "ftstan.ft.active": ("ft/test_active.py", "ft/test_mixed.py", "ft/test_standby.py"),
    "ftstan.ft.digest": ("ft/test_warm.py", "ft/test_members.py"),
    "ftstan.ft.direct": ("ft/test_direct.py", "ft/test_late_mounts.py"),
    "ftstan.ft.epoch": (
        *("ft/test_epoch.py", "ft/test_raise.py", "ft/test_replaced_epoch.py"),
        *("ft/test_history.py", "ft/test_mixed.py", "ft/test_attack_fencing.py"),
    ),
    "ftstan.ft.epoch_loss": ("ft/test_epoch_loss.py",),
    "ftstan.ft.epoch_records": ("ft/test_epoch_records.py", "ft/test_epoch.py"),
    "ftstan.ft.fencing_check": ("ft/test_epoch.py", "ft/test_direct.py", "ft/test_raise.py"),
    "ftstan.ft.handover": ("ft/test_handover.py", "ft/test_attack_handover_5.py"),
    "ftstan.ft.health": ("ft/test_health.py", "ft/test_members.py"),
    "ftstan.ft.heartbeat": ("ft/test_heartbeat.py", "ft/test_standby.py"),
    "ftstan.ft.heartbeat_trust": ("ft/test_heartbeat_trust.py", "ft/test_standby.py"),
    "ftstan.ft.history": ("ft/test_history.py",),
    "ftstan.ft.holdback": ("ft/test_holdback.py", "ft/test_standby.py"),
    "ftstan.ft.identity": ("ft/test_identity.py", "ft/test_standby.py"),
    "ftstan.ft.lock": ("ft/test_lock.py", "ft/test_lock_attempt.py"),
    "ftstan.ft.lock_attempt": ("ft/test_lock_attempt.py", "ft/test_late_mounts.py"),
    "ftstan.ft.lock_retry": ("ft/test_lock_retry.py", "ft/test_standby.py"),
    "ftstan.ft.lockfaults": ("ft/test_lock.py",),
    "ftstan.ft.moves": ("ft/test_moves.py",),
    "ftstan.ft.mixed": ("ft/test_mixed.py", "ft/test_standby.py"),
    "ftstan.ft.modes": ("ft/test_modes.py",),
    "ftstan.ft.mountcheck": ("ft/test_mountcheck.py",),
    "ftstan.ft.mounts": ("ft/test_mounts.py", "ft/test_mountcheck.py", "ft/test_late_mounts.py"),
    "ftstan.ft.ownership": (
        "ft/test_ownership.py",
        *("ft/test_raise.py", "ft/test_replaced_epoch.py", "ft/test_lock_attempt.py"),
        *("ft/test_watch.py", "ft/test_attack_fencing_5.py", "ft/test_attack_fencing_2.py"),
        "ft/test_mixed.py",
    ),
    "ftstan.ft.pause": ("ft/test_pause.py",),
    "ftstan.ft.standby": ("ft/test_standby.py", "ft/test_mixed.py", "ft/test_active.py"),
    "ftstan.ft.steal": ("ft/test_steal.py", "ft/test_standby.py"),
    "ftstan.ft.storage_look": ("ft/test_storage_look.py",),
    "ftstan.ft.subjects": ("ft/test_subjects.py",),
    "ftstan.ft.survey": ("ft/test_epoch.py", "ft/test_attack_fencing.py"),
    "ftstan.ft.timing": ("ft/test_timing.py", "ft/test_standby.py"),
    "ftstan.ft.vital_signs": ("ft/test_vital_signs.py",),
    "ftstan.ft.warm": ("ft/test_warm.py",),
    "ftstan.ft.watch": ("ft/test_watch.py", "ft/test_lock_attempt.py"),
    "ftstan.stores.file.recovery.damage": ("stores/test_recovery_damage.py",),
    "ftstan.stores.file.recovery.foreign_writes": (
        *("stores/test_follow.py", "stores/test_foreign_writes.py"),
    ),
    "ftstan.stores.file.recovery.lost": ("stores/test_lost_slices.py", "stores/test_judging.py"),
    "ftstan.stores.file.recovery.judging": (
        "stores/test_judging.py",
        *("stores/test_recovery_slices.py", "stores/test_findings.py"),
        *("stores/test_recovery_damage.py", "stores/test_foreign_writes.py"),
        *("stores/test_index_durable.py", "stores/test_exhausted.py", "stores/test_slices.py"),
    ),
    "ftstan.stores.file.recovery.leftovers": ("stores/test_leftovers.py",),
    "ftstan.stores.file.recovery.measure": (
        "stores/test_measure.py",
        *("stores/test_recovery_slices.py", "stores/test_findings.py"),
        *("stores/test_recovery_damage.py", "stores/test_foreign_writes.py"),
        *("stores/test_irregular.py", "stores/test_recovery_names.py", "stores/test_exhausted.py"),
        "stores/test_grown_files.py",
    ),
    "ftstan.stores.file.recovery.opening": (
        *("stores/test_recovery_slices.py", "stores/test_recovery_names.py"),
        *("stores/test_opening_later.py", "stores/test_moved_mark.py"),
        *("stores/test_recovery_damage.py", "stores/test_confirmed.py", "stores/test_purging.py"),
    ),
    "ftstan.stores.file.recovery.quarantine": (
        "stores/test_quarantine.py",
        *("stores/test_recovery_slices.py", "stores/test_recovery_damage.py"),
    ),
    "ftstan.stores.file.recovery.rolling_back": ("stores/test_rolling_back.py",),
}

#: The modules of both packages that nobody judges, and why.
UNJUDGED: dict[str, str] = {
    "ftstan.ft.deadlines": "it only declares",
    "ftstan.ft.events": "it only declares",
    "ftstan.ft.owned": "it only declares",
    "ftstan.ft.sqlaccess": "its tests need databases",
}
