"""Golden pairs: all that one judgement was given, in a file, and what it said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import TrainingRecord
from tests.lab import codec

RECORDS = Path(__file__).parent / "records"
"""Files that are committed."""
CACHE = codec.ROOT / ".pytest_cache" / "lab"
"""Files of all programs that were recorded on this machine. They are too large to be committed."""
EXPECTED = RECORDS / "expected.json"
SUFFIX = ".xz"


@dataclass(frozen=True)
class Golden:
    """One call of the judge: both records, and the other arguments."""

    name: str
    """``program@strategy#number``; the number counts the judgements of one comparison."""
    reference: TrainingRecord
    distributed: TrainingRecord
    perturbed: tuple[TrainingRecord, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the judge."""

    def judged(self, distributed: TrainingRecord | None = None) -> Report:
        """Judge the pair, or the reference with another record of the strategy."""
        return judge(self.reference, distributed or self.distributed, self.perturbed, **self.options)


def stem_of(program: str, strategy: str) -> str:
    """Return the part of the names of golden pairs that names the comparison."""
    return re.sub(r"[^\w@.=-]+", "_", f"{program}@{strategy}")


def save(golden: Golden, folder: Path) -> int:
    """Write a golden pair. Return the size of its file in bytes."""
    content = (golden.reference, golden.distributed, golden.perturbed, dict(golden.options))
    return codec.dump(content, folder / f"{golden.name}{SUFFIX}")


def load(path: Path) -> Golden:
    """Read a golden pair."""
    return Golden(path.name.removesuffix(SUFFIX), *codec.load(path))


def paths(*folders: Path) -> Iterator[Path]:
    """Yield the files of golden pairs. The first folder wins if a name is in several."""
    seen: set[str] = set()
    for folder in folders:
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if path.name not in seen:
                seen.add(path.name)
                yield path


Opinion = dict[str, Any]
"""Contents of a report, without its texts."""


def opinion(report: Report) -> Opinion:
    """Return the parts of a report that a golden pair holds fast."""
    return {
        "verdict": report.verdict,
        "findings": [[f.check, f.cause, f.step, f.variable] for f in report.findings],
        "excused": [[f.check, f.cause, f.step, f.variable] for f in report.excused],
        "doubts": [doubt.check for doubt in report.doubts],
    }


def expected() -> dict[str, Opinion]:
    """Return what the golden pairs said when somebody last accepted it, by name."""
    return dict(json.loads(EXPECTED.read_text(encoding="utf-8"))) if EXPECTED.exists() else {}


def write_expected(opinions: Mapping[str, Opinion]) -> None:
    """Write opinions as one line for each golden pair, so that a diff shows the pairs that changed."""
    lines = [f"{json.dumps(name)}: {json.dumps(opinions[name])}" for name in sorted(opinions)]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def difference(before: Mapping[str, Opinion], after: Mapping[str, Opinion]) -> Sequence[str]:
    """Describe for a reviewer what changed between two sets of opinions."""
    lines = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is None or new is None:
            lines.append(f"{name}: {'new, ' + new['verdict'] if new else 'gone'}")
            continue
        lines.append(f"{name}: {old['verdict']} -> {new['verdict']}")
        for part in ("findings", "excused", "doubts"):
            lines += [f"    - {part}: {item}" for item in old[part] if item not in new[part]]
            lines += [f"    + {part}: {item}" for item in new[part] if item not in old[part]]
            if sorted(map(str, old[part])) == sorted(map(str, new[part])) and old[part] != new[part]:
                lines.append(f"    {part}: in another order")
    return lines
