"""Find files and folders from asv's configuration; the command line takes precedence."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_ddl.bench.git import commit_url

CONFIGURATIONS = ("asv.conf.json", "asv_bench/asv.conf.json", "benchmarks/asv.conf.json")


class ConfigurationError(Exception):
    """Raised if the command line or asv's configuration cannot be used. The message gives the reason and the fix."""


@dataclass(frozen=True)
class Places:
    """Settings that are needed from asv's configuration. Paths are absolute."""

    configuration: Path | None
    results: Path
    html: Path
    repository: Path | None
    branch: str
    project: str
    commit_url: str


def places_of(options: argparse.Namespace) -> Places:
    """Return the settings from the options, else from asv's configuration.

    :raises ConfigurationError: if there is no configuration that can be used.
    """
    path = options.config or next((Path(name) for name in CONFIGURATIONS if Path(name).is_file()), None)
    if options.config and not options.config.is_file():
        raise ConfigurationError(f"--config={options.config} is not a file")
    data = _configuration(path) if path else {}
    if path is None and options.results is None:
        raise ConfigurationError(
            f"no {', '.join(CONFIGURATIONS)} here: give --config FILE, or --results DIR and --html DIR"
        )
    base = path.parent.resolve() if path else Path.cwd()

    def configured(given: Path | None, key: str, default: str) -> Path:
        return given.resolve() if given else (base / str(data.get(key, default))).resolve()

    results = configured(options.results, "results_dir", "results")
    html = configured(options.html, "html_dir", "html")
    repository = options.repository.resolve() if options.repository else None
    repo = str(data.get("repo", ""))
    if repository is None and repo and (base / repo).is_dir():
        repository = (base / repo).resolve()
    branches = data.get("branches") or ["HEAD"]
    link = str(data.get("show_commit_url", "")).strip("#") or (commit_url(repository) if repository else "")
    branch = options.branch or str(branches[0] or "HEAD")
    return Places(path, results, html, repository, branch, str(data.get("project", "")), link)


def check_outputs(html: Path, json_file: Path | None) -> None:
    """Check that all outputs can be written before minutes are spent on re-runs.

    :raises ConfigurationError: if one cannot be written; the message names it.
    """
    try:
        html.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--html={html} cannot be the folder of the page: {error}") from error
    if json_file is None:
        return
    folder = json_file.absolute().parent
    if not folder.is_dir():
        raise ConfigurationError(f"--json={json_file}: there is no folder {folder}")
    if json_file.is_dir() or not os.access(json_file if json_file.exists() else folder, os.W_OK):
        raise ConfigurationError(f"--json={json_file} cannot be written: give a file in a folder that is yours")


def _configuration(path: Path) -> dict[str, Any]:
    try:
        data = _parser()(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read as asv's configuration: {error}") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path} holds a {type(data).__name__}, not asv's configuration")
    return data


def _parser() -> Callable[[str], Any]:
    try:
        json5 = import_module("json5")  # a dependency of asv; without it, comments cannot be read
    except ImportError:
        return json.loads
    parser: Callable[[str], Any] = json5.loads
    return parser
