"""Write the page of the docs about struck processes and scarce resources: ``python -m tests.fire.page``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.fire.registry import FIRES, SCARCITIES

PAGE = Path(__file__).parents[2] / "docs" / "robustness.md"
INTRODUCTION = """# Robustness

A process of a run may be killed or suspended, and the machine may lack something. In each case, the run
ends in time. It passes only if all tests ran and passed. No process, file, port or shared memory is left.

The tests in `tests/fire/` check each row of these tables, and `python -m tests.fire.page` writes this page from their
list.

## Struck processes

SIGKILL ends a process at once, as the kernel does when memory runs out. SIGSTOP suspends it. A rank that gets no
processor time behaves in the same way.
"""
SCARCE = """
## Scarce resources
"""
LEAKS = """
## Leaks

`pytest tests -m soak -s` starts 10,000 fresh clusters and sends 100,000 requests to warm ones. Before and after, it
counts processes, threads, ports, descriptors, entries of `/dev/shm` and files. All must be equal. It also samples the
memory of the pytest process and of the zygote 40 times. The growth from the third quarter to the fourth must not exceed
the largest change between two neighboring samples of this half. A buffer that grows once changes no more than this, and
a leak adds up.
`DDL_SOAK_CLUSTERS` and `DDL_SOAK_REQUESTS` set smaller numbers.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    fires = [(fire.target, fire.signal, ", ".join(fire.phases), fire.happens) for fire in FIRES]
    scarce = [
        (one.missing, f"{one.happens}: “… {one.says}”." if one.says else f"{one.happens}.")
        for one in SCARCITIES.values()
    ]
    return "\n".join(
        [
            INTRODUCTION,
            _table(("process", "signal", "when", "what happens"), fires),
            SCARCE,
            _table(("what is missing", "what happens"), scarce),
            LEAKS,
        ]
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
