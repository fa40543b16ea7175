"""A whole evaluation of a program with a planted bug, interrupted in the middle and continued."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from pytest_ddl.bench import Matrix
from pytest_ddl.bench.evaluating import store
from pytest_ddl.bench.evaluating.records import Evaluation
from pytest_ddl.bench.outcome import INTERRUPTED
from pytest_ddl.commands import evaluate as command

MIRRORED, WORKERS = "mirrored[replicas=2]", "parameter_server[workers=2,ps=1,processes=shared]"
OPTIONS = (
    "real_programs:averages_on_each_replica --replicas=2 --batch-per-replica=8 "
    "--seeds=3 --launches=2 --seconds=0.05 --device=cpu "
    "--batch-sizes=8,16,32 --check-steps=16"
)


@pytest.mark.slow
def test_a_planted_bug_is_wrong_and_not_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    folder = tmp_path / "out"
    given = [*OPTIONS.split(), f"--strategy={MIRRORED},{WORKERS},tpu", f"--output={folder}"]
    save, saved = store.save, []

    def save_and_interrupt(evaluation: Evaluation, to: Path) -> None:
        save(evaluation, to)
        saved.append(evaluation)
        if len(saved) == 16:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "save", save_and_interrupt)
        assert command.main(parser.parse_args(given)) == INTERRUPTED
    capsys.readouterr()
    assert command.main(parser.parse_args(given)) == command.WRONG
    captured = capsys.readouterr()
    assert "goes on" in captured.err
    assert f"the training is wrong under {MIRRORED}" in captured.err
    assert f"{MIRRORED} is WRONG: gradient-scaled-by-replica-count" in captured.out

    data = json.loads((folder / store.FILE).read_text(encoding="utf-8"))
    found = Evaluation.from_json(data)
    assert found.complete
    assert found.curves[: len(saved[-1].curves)] == saved[-1].curves, "nothing was trained twice"
    assert found.verdicts[MIRRORED].verdict == "fail"
    assert found.verdicts[WORKERS].verdict == "pass", "its replicas are not in sync, so nothing is scaled"
    stale = [one.staleness for one in found.curves_of(WORKERS)]
    assert all(one is not None and sum(one.values()) == 16 for one in stale)
    assert set(Matrix.from_json(data["matrix"]).variants) == {"one_device", MIRRORED, WORKERS}
    assert found.sweep is not None
    assert "tpu" in found.matrix.skipped

    row = next(
        line for line in (folder / "table.md").read_text().splitlines() if line.startswith("| - ") and MIRRORED in line
    )
    assert "WRONG" in row
    assert (folder / "index.html").read_text().count("data:image/svg+xml") >= 3
