"""Process of one side of the gate: it launches one version of the training function repeatedly.

The gate decides when to launch and when blocks of steps run. This process only starts the ranks, waits for them, and
reports.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest_ddl
from pytest_ddl.bench.gate.target import FromVersion, VersionTarget, VersionTargetError
from pytest_ddl.bench.launching.processes import die_with
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.json_records import JsonRecord

PROTOCOL = 4
"""Version of :class:`SideOrder` and the report. It rises if they change: BASE's own pytest-ddl may be older."""
_PACKAGE = str(Path(pytest_ddl.__file__).resolve())


@dataclass(frozen=True)
class SideOrder(JsonRecord):
    """Order to a side to make one launch."""

    target: str
    file: str
    root: str
    paths: tuple[str, ...]
    checkout: str
    strategy: str
    address: str
    report: str
    """File for the report, which is JSON: ``{"launch": ...}`` or ``{"error": ...}``."""
    bench: BenchSpec
    parent: int
    cores_per_replica: int = 0
    rotation: int = 0
    """Number of places by which the ranks move over their hosts."""
    canary: bool = False
    protocol: int = PROTOCOL

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json()), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Carry out the order in the file given as the only argument, then those in the files named on standard input.

    Return 0 if each report has its launch. The first launch that fails is the last one, and the status is 1.
    """
    (path,) = sys.argv[1:] if arguments is None else arguments
    order = _read(path)
    # If the gate is killed, this process must end too, and with it its zygote and ranks.
    die_with(int(order["parent"]))
    signal.signal(signal.SIGTERM, _leave)
    while _carry_out(order):
        path = os.fsdecode(sys.stdin.buffer.readline().rstrip(b"\n"))
        if not path:
            return 0
        order = _read(path)
    return 1


def _read(path: str) -> dict[str, Any]:
    order: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return order


def _carry_out(order: dict[str, Any]) -> bool:
    """Launch once, write the report, and return whether it has a launch."""
    try:
        if order["protocol"] != PROTOCOL:
            raise RuntimeError(
                f"this pytest-ddl ({_PACKAGE}) uses version {PROTOCOL} of the gate's protocol, and "
                f"the gate uses version {order['protocol']}; give --instrument=gate"
            )
        report: dict[str, Any] = {"launch": _launch(SideOrder.from_json(order))}
    except Exception as error:
        traceback.print_exc()
        report = {"error": _error_text(error), "type": type(error).__name__}
    report |= {"pytest_ddl": pytest_ddl.__version__, "pytest_ddl_file": _PACKAGE, "interpreter": sys.executable}
    whole = Path(order["report"])
    part = whole.with_suffix(".part")
    part.write_text(json.dumps(report), encoding="utf-8")
    part.replace(whole)
    return "error" not in report


def _launch(order: SideOrder) -> dict[str, Any]:
    from pytest_ddl.bench.launching.launch import launch
    from pytest_ddl.harness import process_harness

    harness = process_harness()
    # Started early, because the import of TensorFlow takes seconds and overlaps with the lines below.
    harness.warm_up()
    train = FromVersion(
        VersionTarget.parse(order.target),
        Path(order.file),
        Path(order.root),
        tuple(Path(path) for path in order.paths),
        Path(order.checkout),
    )
    launched = launch(
        harness,
        train,
        harness.registry.parse_variant(order.strategy),
        order.bench,
        cores_per_replica=order.cores_per_replica,
        address=order.address,
        rotation=order.rotation,
        canary=order.canary,
    )
    return launched.as_json()


def _error_text(error: Exception) -> str:
    failure = error.failure if isinstance(error, BenchError) else None
    if failure is not None and failure.type.rpartition(".")[2] == VersionTargetError.__name__:
        return failure.message  # the traceback from the rank does not help the user
    return str(error) or type(error).__name__


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit("told to end")


if __name__ == "__main__":
    sys.exit(main())
