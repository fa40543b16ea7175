"""Measure the quality of the checks, and write the numbers and the page of the docs: ``python -m tests.evaluation``.

Results are kept one by one in ``--results``: if a run was cut off, or ended by ``--minutes``, the next one
continues after its last result. Remove the folder to measure anew.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.evaluation import page
from tests.evaluation.parts import PARTS, in_processes, measure_times


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluation", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=["times", *PARTS], default=["times", *PARTS])
    parser.add_argument("--minutes", type=float, help="at most so long for each part")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many check at the same time")
    parser.add_argument("--results", type=Path, default=Path("build/evaluation"), help="where single results are kept")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page anew")
    parser.add_argument("--no-page", action="store_true", help="keep the results, and leave the page as it is")
    options = parser.parse_args(arguments)
    write = page.joined if options.no_page else page.write
    numbers = write({})
    for part in [] if options.page else options.only:
        print(f"{part} …", flush=True)
        if part == "times":
            numbers = write(measure_times())
        else:
            numbers = write(in_processes(part, options.results, options.minutes, options.processes))
    print(page.page(numbers).split("## Planted")[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
