"""The packages and roots of the tests about packages, for hosts that Ansible installs them on."""

from __future__ import annotations

from tests.packaging.conftest import debian_host, next_packages, packages

__all__ = ["debian_host", "next_packages", "packages"]
