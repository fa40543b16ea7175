"""Fixtures for tests that strike processes: projects that pytest runs in a process of its own."""

from tests.plugin.conftest import new_project

__all__ = ["new_project"]
