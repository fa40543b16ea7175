"""Pytest plugin that runs tests with planted defects, and records those that fail for this reason only.

``python -m suites.proofs`` loads it. Each test is run with its defects, and then without a defect, if it failed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from pytest_ddl import DivergenceError, RankError
from pytest_ddl.cluster.handle import ClusterHandle
from pytest_ddl.cluster.worker import current_rank
from pytest_ddl.harness import Harness
from pytest_ddl.items.on_ranks import ON_RANKS
from suites import expecting, proofs
from suites.defects import DEFECTS, VARIABLE, Defect, planted

SOUND = "sound"
"""Parameter of a run without a defect."""
_FIXTURE = "ddl_planted"
_LIGHT = ("mirrored", "one_device", "central_storage", "model_parallel", "parameter_server")
"""Strategies, the quickest first. All others run last."""

_BROKEN = {"TypeError", "AttributeError", "NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError"}
"""Exceptions that a defect may cause because it is written badly, so that they prove nothing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("proofs of the suite of pytest-ddl")
    group.addoption("--ddl-defects", default="", help="Names of the defects to plant, separated by commas")
    group.addoption("--ddl-proofs", default=str(proofs.FILE), help="File for the proofs (default: %(default)s)")
    group.addoption("--ddl-missing", action="store_true", help="Run only tests without a proof, until they have one")
    group.addoption("--ddl-sound", action="store_true", help="Trust that each test passes without a defect")
    group.addoption("--ddl-cases", type=int, default=3, help="Sets of parameters of a test that run (default: 3)")


def pytest_configure(config: pytest.Config) -> None:
    names = config.getoption("--ddl-defects").split(",")
    config.pluginmanager.register(Prover(config, [DEFECTS[name] for name in names if name]), "ddl-suite-prover")


@pytest.hookimpl(tryfirst=True)
def pytest_collect_file() -> None:
    """Let Hypothesis search no smaller example, before the modules with tests are imported."""
    # The profile of the suite is loaded by its conftest, so that this is no part of pytest_configure.
    settings.register_profile("proofs", settings(), phases=[Phase.explicit, Phase.generate])
    settings.load_profile("proofs")


@pytest.fixture(autouse=True)
def ddl_planted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Plant a defect in this process, and in the processes that the test starts."""
    name = request.param
    if name == SOUND:
        yield
        return
    with pytest.MonkeyPatch.context() as patch, planted(name):
        if current_rank() is None:
            patch.setenv(VARIABLE, name)
            lease = Harness.cluster

            @contextmanager
            def cluster(self: Harness, spec: Any, mark: Any, **arguments: Any) -> Iterator[Any]:
                # A cluster with an environment of its own is started for this test, so that it has the defect.
                environ = {**(arguments.pop("environ", None) or {}), VARIABLE: name}
                with lease(self, spec, mark, environ=environ, **arguments) as leased:
                    if not arguments.get("sessions"):
                        ClusterHandle(leased, time.monotonic() + self.timeout(mark)).run(_import_suite)
                    yield leased

            patch.setattr(Harness, "cluster", cluster)
        yield


def _import_suite() -> None:
    """Plant the defect of the environment. A training that a generator has drawn imports nothing of the suite."""
    import suites  # noqa: F401


def spread(cases: Sequence[Any], number: int) -> list[Any]:
    """Return some of the cases, from all parts of the sequence."""
    if len(cases) <= number:
        return [*cases]
    return [cases[index * len(cases) // number] for index in range(number)]


def is_proof(error: BaseException) -> bool:
    """Return whether a failure shows that the test has seen the defect."""
    told = str(error)
    if "deadline exceeded" in told:  # a busy machine can reach it without a defect
        return False
    if isinstance(error, RankError):
        return not _BROKEN & {answer.failure.type for answer in error.answers if answer.failure is not None}
    if isinstance(error, DivergenceError):
        return not re.search(rf"\b({'|'.join(_BROKEN)})\b", told)
    return type(error).__name__ not in _BROKEN and not isinstance(error, pytest.skip.Exception)


class Prover:
    """One run: the tests with their defects, and what failed so far."""

    def __init__(self, config: pytest.Config, defects: Sequence[Defect]) -> None:
        # A defect that is about few tests is likely to be seen by them.
        self._defects = sorted(defects, key=_number_of_tests)
        self._missing = config.getoption("--ddl-missing")
        self._cases = config.getoption("--ddl-cases")
        self._trusts = config.getoption("--ddl-sound")
        self._file = Path(config.getoption("--ddl-proofs"))
        self._recorded = proofs.load(self._file)
        self._proved: set[tuple[str, str]] = set()
        """Pairs of a test and a defect."""
        self._suspected: dict[str, set[str]] = {}
        """Test with its parameters -> defects with which it failed."""

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        test = proofs.test_of(f"{metafunc.definition.nodeid}")
        chosen = [one.name for one in self._defects if re.search(re.sub(r"\\\[[^|]*", "", one.tests), test)]
        metafunc.parametrize(_FIXTURE, [*chosen, SOUND], indirect=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if current_rank() is not None:
            return
        of_pairs: dict[tuple[str, str], list[pytest.Item]] = {}
        for item in items:
            test, case, name = _parts(item)
            known, has_proof = expecting.KNOWN in item.stash, self._missing and test in self._recorded
            sees = known if name == SOUND else not known and re.search(DEFECTS[name].tests, case)
            # Without defects, tests with known failures show that they can fail.
            if sees and not has_proof and bool(self._defects) == (name != SOUND):
                of_pairs.setdefault((test, name), []).append(item)
        chosen = {one for cases in of_pairs.values() for one in spread(_lightest(cases), self._cases)}
        cases = {_parts(item)[1] for item in chosen}
        kept = [one for one in items if one in chosen or (_parts(one)[2] == SOUND and _parts(one)[1] in cases)]
        config.hook.pytest_deselected(items=[item for item in items if item not in {*kept}])
        items[:] = kept

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if current_rank() is not None:
            return
        test, case, name = _parts(item)
        suspected = self._suspected.get(case, set())
        if not self._defects:
            needless = any(one == test for one, _ in self._proved)
        elif name == SOUND:
            needless = not suspected
        elif self._missing:
            needless = bool(suspected) or any(one == test for one, _ in self._proved)
        else:
            needless = (test, name) in self._proved
        if needless:
            pytest.skip("this proves nothing new")

    # Around the plugin, which decides from the report whether the ranks of the test run another one.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if current_rank() is None and call.when == "call":
            test, case, name = _parts(item)
            if name != SOUND and report.failed and call.excinfo is not None and is_proof(call.excinfo.value):
                self._suspected.setdefault(case, set()).add(name)
                _keep_cluster(item)
                if self._trusts:
                    self._prove(test, case)
            elif name == SOUND and report.passed:
                self._prove(test, case)
            elif not self._defects and hasattr(report, "wasxfail") and report.skipped:
                self._proved.add((test, SOUND))
                proofs.add(test, [proofs.expected_failure()], self._file)
        return report

    def _prove(self, test: str, case: str) -> None:
        found = self._suspected.pop(case, set())
        self._proved |= {(test, one) for one in found}
        proofs.add(test, found, self._file)


def _number_of_tests(defect: Defect) -> int:
    return sum(re.search(defect.tests, test) is not None for test in proofs.all_tests())


def _parts(item: pytest.Item) -> tuple[str, str, str]:
    """Return the test, the test with its own parameters, and the name of the defect."""
    name = item.callspec.params[_FIXTURE]  # type: ignore[attr-defined]
    nodeid = proofs.relative(item.nodeid)
    case = nodeid.removesuffix(f"{name}]").removesuffix("-").removesuffix("[")
    return proofs.test_of(item.nodeid), case + "]" if "[" in case else case, str(name)


def _keep_cluster(item: pytest.Item) -> None:
    """Use the process of a test again, although the test failed in it: another one would have to be started."""
    runner = item.stash.get(ON_RANKS, None)
    if runner is not None and runner._cluster is not None and len(runner._cluster.tasks) == 1:
        runner._spoiled = False


def _lightest(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    first = min(map(_weight, cases))
    return [case for case in cases if _weight(case) == first]


def _weight(item: pytest.Item) -> int:
    strategy = expecting.strategy_of(item)
    return 0 if strategy is None else _LIGHT.index(strategy) if strategy in _LIGHT else len(_LIGHT)
