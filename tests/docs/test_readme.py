"""The examples of the README and of the documentation run, and fail, as they say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
FIRST_STEPS = ROOT / "docs/start.md"
REPORT = ROOT / "docs/checking-training.md"
_BLOCK = re.compile(r"<!-- (?P<name>[^>]+) -->\n```\w*\n(?P<text>.*?)```", re.DOTALL)
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def blocks(page: Path = README) -> dict[str, str]:
    return {match["name"]: match["text"] for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))}


def with_the_mistake(program: str, diff: str) -> str:
    """Apply a one-line diff of a page."""
    removed, added = (line[1:] for line in diff.splitlines())
    assert program.count(removed) == 1
    return program.replace(removed, added)


def normalized(text: str) -> list[str]:
    """Return the words of a report without its numbers. The line breaks depend on the length of the numbers."""
    lines = (line.removeprefix("E ") for line in text.splitlines())
    return re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "N", " ".join(lines)).split()


def run(pytester: pytest.Pytester, program: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_train=program)
    pytester.makeini("[pytest]\n")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=300)


@pytest.mark.slow
def test_example_passes(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, blocks(FIRST_STEPS)["example: test_train.py"], "--ddl-strategy=mirrored,multi_worker_mirrored"
    )
    result.assert_outcomes(passed=2)


@pytest.mark.slow
def test_example_of_fit_passes(pytester: pytest.Pytester) -> None:
    run(pytester, blocks()["example: test_fit.py"], "--ddl-strategy=mirrored").assert_outcomes(passed=1)


@pytest.mark.slow
def test_example_passes_with_an_optimizer_that_has_slots(pytester: pytest.Pytester) -> None:
    example = blocks(FIRST_STEPS)["example: test_train.py"].replace("optimizers.SGD(0.1)", "optimizers.Adam(0.01)")
    assert "Adam(0.01)" in example
    result = run(pytester, example, "--ddl-strategy=mirrored,central_storage,parameter_server,model_parallel")
    result.assert_outcomes(passed=4)


@pytest.mark.slow
def test_mistake_fails_as_shown(pytester: pytest.Pytester) -> None:
    found = blocks(REPORT)
    program = with_the_mistake(blocks(FIRST_STEPS)["example: test_train.py"], found["example: the mistake"])
    result = run(pytester, program, "--ddl-strategy=mirrored")
    result.assert_outcomes(failed=1)
    shown = normalized(found["example: the failure"])
    printed = normalized("\n".join(line for line in result.outlines if line.startswith("E")))
    assert shown == printed


@pytest.mark.slow
def test_the_tried_script_fails_as_shown_and_passes_with_the_fix(pytester: pytest.Pytester) -> None:
    found = blocks()
    script, shown = found["example: train.py"], found["example: the try"]
    fixed = "        gradients = tape.gradient(loss,"
    assert script.count(fixed) == 1
    *_report, fix = shown.rstrip().splitlines()
    pytester.makepyfile(train=script, right=script.replace(fixed, f"            {fix.strip()}\n{fixed}"))
    command = (sys.executable, "-m", "pytest_ddl.cli", "try", "--strategy=mirrored")
    result = pytester.run(*command, "train.py", timeout=300)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert " ".join(normalized(shown)) in " ".join(normalized(result.stdout.str()))
    assert pytester.run(*command, "right.py", timeout=300).ret == pytest.ExitCode.OK


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/writing-tests.md"])
def test_other_examples_pass(page: str, pytester: pytest.Pytester) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    examples = [
        example
        for example in _PYTHON.findall(text)
        if "def test_" in example and "ddl_equivalence" not in example and "ddl_fit" not in example
    ]
    assert examples
    result = run(pytester, "import pytest\n" + "\n\n".join(examples), "--ddl-strategy=mirrored,multi_worker_mirrored")
    outcomes = result.parseoutcomes()
    assert set(outcomes) <= {"passed", "warnings"}
    assert outcomes["passed"] >= len(examples)


@pytest.mark.parametrize("page", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("name", ["command: main job", "command: tests"])
def test_commands_set_everything_up(name: str) -> None:
    command = shlex.split(blocks()[name])
    assert command[:4] == ["python3", "-m", "venv", ".venv"]
    assert {".venv/bin/pip", ".venv/bin/pytest"} <= set(command)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategies"), [("ddl_fit", "mirrored"), ("fit", "mirrored"), ("coordinator", "parameter_server")]
)
def test_examples_of_comparisons_pass(name: str, strategies: str, pytester: pytest.Pytester) -> None:
    text = (ROOT / "docs" / "checking-training.md").read_text(encoding="utf-8")
    (example,) = (match["text"] for match in _BLOCK.finditer(text) if match["name"] == f"example: {name}")
    run(pytester, example, f"--ddl-strategy={strategies}").assert_outcomes(passed=1)


def test_check_command_names_the_function_of_the_example() -> None:
    found = blocks(FIRST_STEPS)
    command, target, *_options = shlex.split(found["command: check"])[1:]
    assert (command, target) == ("check", "test_train.py:train")
    assert "def train(run" in found["example: test_train.py"]


def test_commands_for_speed_name_the_function_of_the_first_steps() -> None:
    lines = [shlex.split(line) for line in blocks()["command: speed"].splitlines()]
    named = {word.removeprefix("--target=") for line in lines for word in line if ":" in word}
    assert named == {"test_train.py:train"}
    assert "def train(run" in blocks(FIRST_STEPS)["example: test_train.py"]


def test_adam_hides_a_gradient_that_is_twice_too_large() -> None:
    """Check the README's statement about ``np.allclose``."""

    def weights_after_100_steps(factor: float) -> NDArray[np.float64]:
        rng = np.random.default_rng(0)
        x, right = rng.normal(size=(100, 64, 8)), rng.normal(size=8)
        weights, mean, square = np.zeros(8), np.zeros(8), np.zeros(8)
        for step, batch in enumerate(x, start=1):
            gradient = factor * 2 * batch.T @ (batch @ (weights - right)) / len(batch)
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            unbiased = mean / (1 - 0.9**step), square / (1 - 0.999**step)
            weights = weights - 0.001 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-7)
        return weights

    right, wrong = weights_after_100_steps(1), weights_after_100_steps(2)
    assert np.abs(right).min() > 0.05
    assert 0 < np.abs(wrong / right - 1).max() < 1e-5
    assert np.allclose(right, wrong)


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 165
