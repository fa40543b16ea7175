"""One side of the gate: an interpreter that launches one version of the training function, again and again.

The gate says when to launch and when blocks of steps run; this process only starts the ranks, waits for them, and
reports.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_ddl.bench.gate.target import FromVersion, Target
from pytest_ddl.bench.processes import die_with
from pytest_ddl.bench.spec import BenchSpec

PROTOCOL = 2
"""Of :class:`SideOrder` and the report. Raised when they change: BASE's own pytest-ddl may be an older one."""


@dataclass(frozen=True)
class SideOrder:
    """What a side is to launch."""

    target: str
    file: str
    root: str
    paths: tuple[str, ...]
    checkout: str
    strategy: str
    address: str
    """Of this side's pacer."""
    report: str
    """The file for the report, JSON: ``{"launch": ...}`` or ``{"error": ...}``."""
    bench: dict[str, Any]
    """The fields of :class:`BenchSpec`."""
    parent: int
    cores_per_replica: int = 0
    protocol: int = PROTOCOL

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Launch what the file given as the only argument says, then what those say whose names come on standard input.

    0 where each launch is in its report; the first that failed is the last.
    """
    (path,) = sys.argv[1:] if arguments is None else arguments
    order = _read(path)
    # Its zygote and ranks end with it.
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
    """Launch once and report; whether there is a launch in the report."""
    try:
        if order["protocol"] != PROTOCOL:
            raise RuntimeError(
                f"this pytest-ddl ({_package_file()}) speaks version {PROTOCOL} of the gate's protocol, and "
                f"the gate version {order['protocol']}; give --instrument=gate"
            )
        report: dict[str, Any] = {"launch": _launch(SideOrder(**order)), **_provenance()}
    except Exception as error:
        traceback.print_exc()
        report = {"error": _told(error), "type": type(error).__name__, **_provenance()}
    whole = Path(order["report"])
    part = whole.with_suffix(".part")
    part.write_text(json.dumps(report), encoding="utf-8")
    part.replace(whole)
    return "error" not in report


def _launch(order: SideOrder) -> dict[str, Any]:
    from pytest_ddl.bench.launching.launch import launch
    from pytest_ddl.harness import process_harness

    harness = process_harness()
    # Its import of TensorFlow takes seconds, and overlaps with what comes next.
    harness.warm_up()
    train = FromVersion(
        Target.parse(order.target),
        Path(order.file),
        Path(order.root),
        tuple(Path(path) for path in order.paths),
        Path(order.checkout),
    )
    found = launch(
        harness,
        train,
        harness.registry.parse_variant(order.strategy),
        BenchSpec(**order.bench),
        cores_per_replica=order.cores_per_replica,
        address=order.address,
    )
    return found.as_json()


def _told(error: Exception) -> str:
    text = str(error) or type(error).__name__
    _before, found, problem = text.partition("TargetError: ")
    # The function is not there: the stack that a rank found this in is of no use to the user.
    return problem.split("\n", 1)[0] if found else text


def _provenance() -> dict[str, str]:
    import pytest_ddl

    return {"pytest_ddl": pytest_ddl.__version__, "pytest_ddl_file": _package_file(), "interpreter": sys.executable}


def _package_file() -> str:
    import pytest_ddl

    return str(Path(pytest_ddl.__file__).resolve())


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit("told to end")


if __name__ == "__main__":
    sys.exit(main())
