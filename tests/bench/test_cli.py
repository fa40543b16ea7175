"""The command ``pytest-ddl`` itself."""

from __future__ import annotations

import pytest

from pytest_ddl import cli


def test_a_subcommand_that_cannot_be_imported_is_no_regression(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", (cli.Command("gate", "", "pytest_ddl.bench.gone"),))
    assert cli.main(["gate", "main", "HEAD"]) == cli.FAILED != 1
    assert "pytest-ddl gate cannot start: No module named 'pytest_ddl.bench.gone'" in capsys.readouterr().err
