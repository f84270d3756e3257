"""Templates of reports: what comes from data is text, a missing value is an error, and who writes
none loads none.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from jinja2 import UndefinedError

from ftstan.reports import clock, render
from ftstan.reports.plots import Plot

_LOOK = """
import sys
import ftstan.cli.ctl, ftstan.cli.drill
print("jinja2" in sys.modules)
"""


def test_a_template_without_a_value_that_it_needs_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("drill.html", plot=Plot(1, 1, "", ""))


def test_a_time_that_no_date_has_is_shown_as_its_number() -> None:
    assert clock(1_700_000_000_000_000) == "2023-11-14 22:13:20"
    assert clock(1 << 62) == f"{1 << 62} us"


@pytest.mark.slow
def test_commands_that_write_no_report_load_no_templates() -> None:
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
