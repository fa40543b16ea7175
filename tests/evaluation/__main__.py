"""Measures what the checks are worth: ``python -m tests.evaluation``; writes the numbers and the page of the docs.

Results are kept one by one in ``--results``: a run that was cut off, or that ``--minutes`` ended, goes on
where it stopped. Remove the folder to measure anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.evaluation import page
from tests.evaluation.parts import PARTS, Numbers, in_processes, measure_times


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluation", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=["times", *PARTS], default=["times", *PARTS])
    parser.add_argument("--minutes", type=float, help="at most so long for each part")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many check at the same time")
    parser.add_argument("--results", type=Path, default=Path("build/evaluation"), help="where single results are kept")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page anew")
    options = parser.parse_args(arguments)
    numbers = json.loads(page.NUMBERS.read_text(encoding="utf-8")) if page.NUMBERS.exists() else {}
    for part in [] if options.page else options.only:
        print(f"{part} …", flush=True)
        if part == "times":
            numbers.update(measure_times())
        else:
            numbers.update(in_processes(part, options.results, options.minutes, options.processes))
        _write(numbers)
    _write(numbers)
    print(page.page(numbers).split("## Planted")[0])
    return 0


def _write(numbers: Numbers) -> None:
    text = json.dumps(numbers, indent=1, sort_keys=True) + "\n"
    page.NUMBERS.write_text(text, encoding="utf-8")
    # From the text: the page must be the same whoever writes it from the file.
    page.PAGE.write_text(page.page(json.loads(text)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
