"""Histories without end: ``make soak-model``."""

from __future__ import annotations

import os
import sys
import time

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from ftstan.base import log
from tests.model.machine import FileMachine, ForgetfulMachine

ROUND = settings(
    max_examples=200,
    stateful_step_count=80,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def soak() -> int:
    """Rounds until Ctrl-C, each with a seed of its own.

    Returns 1, with a short script, when a server is wrong.
    """
    # Every restart would say that it has recovered: a million such lines tell nothing.
    log.configure(file=os.devnull)
    at = int(sys.argv[1]) if len(sys.argv) > 1 else time.time_ns() % 1_000_000_000
    print(
        f"soak of the broker against its reference from seed {at} on; stop it with Ctrl-C",
        flush=True,
    )
    try:
        while True:
            for machine in (ForgetfulMachine, FileMachine):
                try:
                    run_state_machine_as_test(seed(at)(machine), settings=ROUND)
                except AssertionError as error:
                    print(
                        "\n".join(
                            [f"WRONG at seed {at}: {error}", *getattr(error, "__notes__", [])]
                        )
                    )
                    return 1
            print(f"seed {at}: {2 * ROUND.max_examples} histories, nothing wrong", flush=True)
            at += 1
    except KeyboardInterrupt:
        print(f"stopped at seed {at}: nothing wrong")
        return 0


if __name__ == "__main__":
    sys.exit(soak())
