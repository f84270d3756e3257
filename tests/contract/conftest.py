"""The suite's assertions explain themselves, though they are in the package."""

import pytest

pytest.register_assert_rewrite("ftstan.stores.contract")
