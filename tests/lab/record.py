"""Record golden pairs again, and show a reviewer what changed: ``python -m tests.lab.record``.

Without ``--accept`` nothing that is committed changes. New files go to the cache of pytest, and ``tests.lab.mutate
--all`` finds them there, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.lab import golden
from tests.lab.golden import CACHE, RECORDS, SUFFIX, Opinion


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.record", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="programs with this in name@strategy")
    parser.add_argument("--minutes", type=float, help="start no program after this time")
    parser.add_argument("--missing", action="store_true", help="only programs that have no file in the cache")
    parser.add_argument("--judge", action="store_true", help="run no program, judge the committed records again")
    parser.add_argument("--accept", action="store_true", help="commit what was recorded or judged")
    parser.add_argument("--most", type=int, default=30, help="largest file to accept, in KB (default: 30)")
    options = parser.parse_args(arguments)
    before = golden.expected()
    if options.judge:
        after = {path.name.removesuffix(SUFFIX): _opinion(path) for path in golden.paths(RECORDS)}
        _show(before, after)
        if options.accept:
            golden.write_expected(after)
        return 0
    made = record_all(options.only, options.minutes, options.missing)
    known = {name: before[name] for name in made if name in before}
    _show(known, made)
    if options.accept:
        small = [name for name in made if (CACHE / (name + SUFFIX)).stat().st_size <= 1000 * options.most]
        for name in small:
            (RECORDS / (name + SUFFIX)).write_bytes((CACHE / (name + SUFFIX)).read_bytes())
        golden.write_expected({**before, **{name: made[name] for name in small}})
    return 0


def record_all(names: list[str], minutes: float | None, missing: bool = False) -> dict[str, Opinion]:
    """Run programs, write their golden pairs to the cache, and return what the judge said of them."""
    # They import TensorFlow, which the judge does not need.
    from tests.lab.capture import record
    from tests.lab.programs import all_cases

    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    made: dict[str, Opinion] = {}
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        cases = all_cases(Path(folder), names)
        for case in cases:
            if time.monotonic() > end:
                break
            if missing and any(CACHE.glob(f"{golden.stem_of(case.name, case.strategy)}#*")):
                continue
            try:
                pairs = record(case.name, case.strategy, case.check)
                for pair, report in pairs:
                    size = golden.save(pair, CACHE)
                    made[pair.name] = golden.opinion(report)
                    print(f"{size / 1000:7.1f} KB {report.verdict:12} {pair.name}", flush=True)
            except Exception:
                # One program that cannot be recorded must not hide the others.
                traceback.print_exc()
    return made


def _opinion(path: Path) -> Opinion:
    return golden.opinion(golden.load(path).judged())


def _show(before: dict[str, Opinion], after: dict[str, Opinion]) -> None:
    lines = golden.difference(before, after)
    print("\n".join(lines) or "no golden pair changed")


if __name__ == "__main__":
    sys.exit(main())
