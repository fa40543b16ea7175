"""Write the page of the docs with the gallery of failures: ``python -m tests.docs.failures.page``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent, fill

from tests.docs.failures.programs import FAILURES, PROGRAM, Failure

PAGE = Path(__file__).parents[3] / "docs" / "failures.md"
_OPTIONS = ("--global-batch-size=12", "--steps=4")
_ROOT = Path(__file__).parents[3]

_COMMAND = f"pytest-ddl check train.py:train --strategy=STRATEGY {' '.join(_OPTIONS)}"

HEAD = f"""\
# Failures

Eight mistakes that are common in distributed training, each with its report and with the code that fixes it. They are
made in this correct program:

```python
{PROGRAM}```

Each report is what this command prints, without the table of all checks at its end:

```sh
{_COMMAND}
```

[Checking training](checking-training.md#a-report) shows a whole report. A test with `ddl_equivalence` prints the same.
This page is generated:
`python -m tests.docs.failures.page`. [Causes](causes.md) has all causes.
"""


def check(failure: Failure, folder: Path, *, mended: bool) -> subprocess.CompletedProcess[str]:
    """Run ``pytest-ddl check`` on a program with a mistake, or on the mended one."""
    environ = {**os.environ, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    (folder / "train.py").write_text(failure.program(mended=mended), encoding="utf-8")
    if failure.before:
        subprocess.run([sys.executable, "-c", dedent(failure.before)], cwd=folder, env=environ, check=True, timeout=120)
    command = [sys.executable, "-m", "pytest_ddl.cli", "check", "train.py:train", f"--strategy={failure.strategy}"]
    return subprocess.run([*command, *_OPTIONS], cwd=folder, env=environ, text=True, capture_output=True, timeout=300)


def report_of(output: str) -> str:
    """Return the report in the output of pytest, without the table of checks."""
    lines = output.partition("= FAILURES =")[2].splitlines()[2:]
    end = next(number for number, line in enumerate(lines) if re.match(r"[A-Z]+(-[A-Z]+)? {2,}\S", line))
    return "\n".join(lines[:end]).rstrip() + "\n"


def section(failure: Failure, report: str) -> str:
    """Return the part of the page about one failure."""
    wrong, mended = (dedent(text).strip("\n") for text in (failure.wrong, failure.mended or failure.right))
    text = fill(failure.text, 120)
    return (
        f"\n## {failure.title}\n\n{text}\n\n```python\n{wrong}\n```\n\nUnder `{failure.strategy}`:\n\n"
        f"```\n{report}```\n\nMended:\n\n```python\n{mended}\n```\n"
    )


def sections(page: str) -> dict[str, str]:
    """Return the parts of the page by title."""
    return {part.partition("\n")[0]: f"\n## {part}" for part in page.split("\n## ")[1:]}


def main() -> None:
    os.environ["PYTHONPATH"] = str(_ROOT)
    parts = [HEAD]
    for failure in FAILURES:
        with tempfile.TemporaryDirectory() as folder:
            parts.append(section(failure, report_of(check(failure, Path(folder), mended=False).stdout)))
    PAGE.write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
