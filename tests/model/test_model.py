"""Any history of clients, subscriptions and restarts shows what the reference allows, and all that it demands."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import FileMachine, ForgetfulMachine


def test_a_broker_on_the_memory_store_does_what_the_reference_says() -> None:
    run_state_machine_as_test(ForgetfulMachine, settings=settings(max_examples=100, stateful_step_count=50))  # type: ignore[no-untyped-call]


def test_a_broker_on_the_file_store_does_what_the_reference_says() -> None:
    run_state_machine_as_test(FileMachine, settings=settings(max_examples=100, stateful_step_count=50))  # type: ignore[no-untyped-call]
