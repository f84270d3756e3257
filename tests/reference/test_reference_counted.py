"""Every code block of the READMEs has a test that says so."""

from __future__ import annotations

from tests.reference import (
    test_reference_clustering,
    test_reference_pages,
    test_reference_v05,
    test_reference_v10,
)
from tests.reference.documents import V05, V10

#: Tests are marked when these are read.
MODULES = (
    *(test_reference_clustering, test_reference_pages),
    *(test_reference_v05, test_reference_v10),
)


def test_every_code_block_of_the_newer_readme_has_a_test() -> None:
    assert V10.numbers == list(range(1, 59))
    assert V10.without_a_test() == []


def test_every_code_block_of_the_older_readme_has_a_test() -> None:
    assert V05.numbers == list(range(1, 34))
    assert V05.without_a_test() == []
