"""Any history of clients, subscriptions and servers shows what the reference allows, and all that
it demands.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import FileMachine, ForgetfulMachine

#: A failure needs more time than usual, to be told as a short script.
pytestmark = pytest.mark.timeout(900)

#: The same histories each time; ``make soak-model`` looks for others.
HISTORIES = settings(
    max_examples=150,
    stateful_step_count=50,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_a_server_on_the_memory_store_does_what_the_reference_says() -> None:
    run_state_machine_as_test(ForgetfulMachine, settings=HISTORIES)


def test_servers_that_follow_each_other_on_the_file_store_do_what_the_reference_says() -> None:
    run_state_machine_as_test(FileMachine, settings=HISTORIES)
