"""Hooks and fixtures of the pytest plugin. Loading it imports neither TensorFlow, Keras, NumPy nor Hypothesis."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddl.config import (
    MARKERS,
    NAMED,
    SETTINGS,
    add_options,
    explain_missing_xdist,
    flag_before_parsing,
    launcher_before_configuring,
    resolve,
)

if TYPE_CHECKING:
    from pytest_ddl.cluster.handle import ClusterHandle
    from pytest_ddl.comparisons import Equivalence, FitEquivalence, ScriptEquivalence
    from pytest_ddl.equivalence.verdict.report import Report
    from pytest_ddl.faults.report import FaultReport
    from pytest_ddl.harness import Harness
    from pytest_ddl.items.unused import FixtureCalls
    from pytest_ddl.strategies.spec import StrategySpec

_CLUSTER = pytest.StashKey["ClusterHandle"]()


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_ddl import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    explain_missing_xdist(early_config, parser, args)
    # Conftest files are loaded next, and they may import TensorFlow. In an xdist worker, the option comes later.
    if flag_before_parsing(early_config, "warm"):
        from pytest_ddl.deferred import defer

        defer()


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    settings = config.stash[SETTINGS] = resolve(config)
    if settings["warm"]:
        from pytest_ddl.deferred import defer

        defer()
    # A strategy, launcher or host that the user named is checked before anything runs, even if no test uses it.
    if any(settings.origin(name) != "default" for name in NAMED):
        from pytest_ddl.session import check_named

        check_named(config)
    if config.option.ddl_check:
        from pytest_ddl.checking import plugin

        config.pluginmanager.register(plugin, "ddl-check")
    if settings["gate"]:
        from pytest_ddl.session import watch_gates

        watch_gates(config)
    if settings["report"]:
        from pytest_ddl.session import watch_report

        watch_report(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    chosen = config.stash[SETTINGS].not_default()
    return f"ddl: {', '.join(chosen)}" if chosen else None


@pytest.hookimpl(specname="pytest_cmdline_main", wrapper=True, tryfirst=True)
def pytest_cmdline_main_of_job(config: pytest.Config) -> Generator[None, Any, Any]:
    if not launcher_before_configuring(config).startswith("tf_config"):
        return (yield)
    from pytest_ddl import joining

    return (yield from joining.run(config))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if "pytest_ddl.joining" in sys.modules:
        from pytest_ddl.joining import TASK

        # The tests run elsewhere.
        if TASK in config.stash:
            return config.stash[TASK]()
    if not config.option.ddl_list:
        return None
    from pytest_ddl.listing import show_strategies

    # Configure plugins and collect nothing, like pytest's own --markers.
    config._do_configure()
    try:
        show_strategies(_harness(config))
    finally:
        config._ensure_unconfigure()
    return 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if any(metafunc.definition.get_closest_marker(name) for name in ("gpu", "tpu")):
        from pytest_ddl.items.accelerators import check_accelerator_marks

        check_accelerator_marks(metafunc.definition)
    marked = metafunc.definition.get_closest_marker("ddl") is not None
    if marked or "_ddl_spec" in metafunc.fixturenames or "ddl_strategy" in metafunc.fixturenames:
        from pytest_ddl.items.parametrizing import parametrize

        parametrize(metafunc, _harness(metafunc.config))
    # The attribute is pytest_ddl.conformance.cases.PLAN, without the import of its module.
    if "ddl_check" in metafunc.fixturenames or hasattr(metafunc.function, "_pytest_ddl_conformance"):
        from pytest_ddl.object_checks import parametrize_checks

        parametrize_checks(metafunc, _harness(metafunc.config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    if any("_ddl_spec" in getattr(item, "fixturenames", ()) or item.get_closest_marker("ddl") for item in items):
        from pytest_ddl.items.parametrizing import collected

        with collected(_harness(config), config, items):
            return (yield)
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in ("gpu", "tpu"):
        mark = item.get_closest_marker(name)
        if mark is not None:
            from pytest_ddl.items.accelerators import check_accelerator

            check_accelerator(_harness(item.config), name, mark)
    if item.get_closest_marker("ddl") is not None:
        from pytest_ddl.items.dispatch import refuse_in_process

        refuse_in_process(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if "_ddl_spec" not in getattr(item, "fixturenames", ()):
        return None
    from pytest_ddl.items.dispatch import run_on_ranks, runs_in_ranks

    if not runs_in_ranks(item):
        return None
    assert isinstance(item, pytest.Function)
    return run_on_ranks(_harness(item.config), item, nextitem)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    calls = _calls(item)
    comparisons = calls.numbers.get("ddl_equivalence", 0) if calls else 0
    if comparisons:
        from pytest_ddl.comparisons import attach_comparisons, report_cause, report_expected_ends

        report_expected_ends(item, report, comparisons)
        report_cause(call, report)
        attach_comparisons(item, report)
    if "pytest_ddl.items.on_ranks" not in sys.modules:
        return report
    from pytest_ddl.items.on_ranks import ON_RANKS

    on_ranks = item.stash.get(ON_RANKS, None)
    return report if on_ranks is None else on_ranks.report(call, report)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    # The signal or thread of pytest-timeout would end the wait for the ranks, or the whole run.
    # Its limit becomes the deadline of the ranks instead.
    if "_ddl_spec" not in getattr(item, "fixturenames", ()):
        return None
    from pytest_ddl.items.dispatch import takes_timeout

    return takes_timeout(item, settings) or None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    calls = _calls(pyfuncitem)
    with calls.threads.followed() if calls else nullcontext():
        result = yield
    if calls:
        from pytest_ddl.items.unused import after_body

        after_body(pyfuncitem, calls, pyfuncitem.stash.get(_CLUSTER, None))
    return result


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    if config.stash[SETTINGS].origin("strategy") == "default":
        return None
    from pytest_ddl.session import auto_num_workers

    return auto_num_workers(_harness(config))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    # All xdist workers get the same folder, so that they share one ledger of slots. If the user named no strategy,
    # there may be no ddl test at all. Nothing is started here then, and each worker that needs a zygote starts one.
    harness = _harness(node.config)
    node.workerinput["ddl_folder"] = str(harness.folder)
    node.workerinput["ddl_address"] = harness.address
    if not node.config.pluginmanager.has_plugin("ddl-unfinished"):
        from pytest_ddl.terminal import Unfinished

        node.config.pluginmanager.register(Unfinished(), "ddl-unfinished")
    if node.config.stash[SETTINGS]["report"]:
        from pytest_ddl.pages.watch import FOLDER

        if FOLDER in node.config.stash:
            node.workerinput["ddl_report"] = str(node.config.stash[FOLDER])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if "pytest_ddl.session" in sys.modules:
        from pytest_ddl.session import tear_down

        tear_down(session)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if "pytest_ddl.session" in sys.modules:  # otherwise no test has asked for a strategy
        from pytest_ddl.terminal import show_summary

        show_summary(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    if "pytest_ddl.deferred" in sys.modules:
        sys.modules["pytest_ddl.deferred"].stop()
    if "pytest_ddl.session" in sys.modules:  # otherwise nothing was started
        from pytest_ddl.session import close

        close(config)


def _harness(config: pytest.Config) -> Harness:
    from pytest_ddl.session import harness_of

    return harness_of(config)


def _calls(item: pytest.Item) -> FixtureCalls | None:
    """Return the calls that a test made of the fixtures below. One that asks for none of them need not import more."""
    unused = sys.modules.get("pytest_ddl.items.unused")
    return item.stash.get(unused.CALLS, None) if unused else None


# ----- fixtures -----


@pytest.fixture(scope="session")
def _ddl_spec(request: pytest.FixtureRequest) -> StrategySpec:
    """The variant under which the test runs. The plugin parametrizes this fixture."""
    if not hasattr(request, "param"):
        from pytest_ddl.cluster.worker import current_rank

        rank = current_rank()
        if rank is not None:
            # The user parametrized ddl_strategy itself, and the rank was started for that variant.
            return rank.spec
        raise pytest.UsageError(
            "ddl_strategy, ddl_cluster and ddl_equivalence must be arguments of the test or of its fixtures: "
            "request.getfixturevalue() comes too late to choose the strategies, and so does a unittest.TestCase"
        )
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def ddl_strategy(_ddl_spec: StrategySpec, request: pytest.FixtureRequest) -> Any:
    """The ``tf.distribute.Strategy`` of this rank. The test runs on all ranks, under each selected strategy."""
    from pytest_ddl.items.dispatch import strategy_here

    return strategy_here(_harness(request.config), _ddl_spec)


def _single(name: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def fixture(ddl_strategy: Any) -> Any:
        return ddl_strategy

    fixture.__doc__ = f"``ddl_strategy``, for a test that runs only under {name.removesuffix('_strategy')}."
    return fixture


one_device_strategy = _single("one_device_strategy")
mirrored_strategy = _single("mirrored_strategy")
multi_worker_mirrored_strategy = _single("multi_worker_mirrored_strategy")
parameter_server_strategy = _single("parameter_server_strategy")
central_storage_strategy = _single("central_storage_strategy")
model_parallel_strategy = _single("model_parallel_strategy")


@pytest.fixture(scope="session")
def virtual_gpus(ddl_strategy: Any) -> list[str]:
    """Names of virtual GPUs. ``@pytest.mark.virtual_gpus(count)`` sets their number."""
    names: list[str] = ddl_strategy
    return names


@pytest.fixture
def ddl_cluster(_ddl_spec: StrategySpec, request: pytest.FixtureRequest) -> Iterator[ClusterHandle]:
    """A handle on a cluster of the selected strategy. The test itself runs in the pytest process."""
    from pytest_ddl.cluster.cluster import ClusterError
    from pytest_ddl.cluster.handle import ClusterHandle
    from pytest_ddl.cluster.obstacles import LaunchError
    from pytest_ddl.items.selection import parse_mark
    from pytest_ddl.items.unused import after_fixtures, calls_of

    harness, mark = _harness(request.config), parse_mark(request.node)
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(harness.cluster(_ddl_spec, mark))
        except (ClusterError, LaunchError) as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        # The time limit of the test starts when its cluster is ready: how long that takes depends on earlier tests.
        deadline, following = time.monotonic() + harness.timeout(mark), calls_of(request.node).threads.training
        handle = request.node.stash[_CLUSTER] = ClusterHandle(cluster, deadline, following)
        yield handle
    after_fixtures(request.node, handle)


@pytest.fixture
def ddl_equivalence(_ddl_spec: StrategySpec, request: pytest.FixtureRequest) -> Equivalence:
    """Compare a training function under the selected strategy with one device; see :func:`pytest_ddl.check_training`.

    Returns the report if the comparison passes, or if the run ends with a crash that ``expect=`` declares. A test with
    such a crash is reported as an expected failure, and so is a test with a known behavior of TensorFlow or Keras.
    Raises ``DivergenceError`` if the comparison fails. If it is inconclusive, the test fails in strict mode or if the
    program is the reason, and is skipped otherwise. A comparison is also inconclusive if ``checks=`` names a check that
    has nothing to judge.
    """
    from pytest_ddl.cluster.obstacles import LaunchError
    from pytest_ddl.comparisons import Equivalence, NoRanksError, assert_equivalence
    from pytest_ddl.equivalence.runs.question import explains_arguments
    from pytest_ddl.items.selection import parse_mark
    from pytest_ddl.items.unused import calls_of

    harness, mark = _harness(request.config), parse_mark(request.node)
    calls = calls_of(request.node, "ddl_equivalence")

    @explains_arguments("ddl_equivalence", Equivalence.__call__)
    @wraps(assert_equivalence)
    def compare(train: Any, **arguments: Any) -> Report | FaultReport:
        __tracebackhide__ = True
        try:
            with calls.of("ddl_equivalence"):
                return assert_equivalence(harness, request.node, _ddl_spec, mark, train, **arguments)
        except LaunchError as error:
            raise NoRanksError(str(error), pytrace=False) from None

    compared: Equivalence = compare
    return compared


@pytest.fixture
def ddl_fit(ddl_equivalence: Equivalence) -> FitEquivalence:
    """Compare ``fit`` of a compiled Keras model with one device: ``ddl_fit(build, data, batch_size=64, epochs=2)``."""
    from pytest_ddl.comparisons import FitEquivalence

    return FitEquivalence(ddl_equivalence)


@pytest.fixture
def ddl_script(
    ddl_equivalence: Equivalence, _ddl_spec: StrategySpec, request: pytest.FixtureRequest
) -> ScriptEquivalence:
    """Compare a script that is run as it is with one device: ``ddl_script("train.py", args=["--epochs=2"])``."""
    from pytest_ddl.comparisons import ScriptEquivalence

    strategy = _harness(request.config).registry[_ddl_spec.name]
    return ScriptEquivalence(ddl_equivalence, request.node, strategy.num_replicas(_ddl_spec) or 1)


@pytest.fixture
def ddl_check(_ddl_spec: StrategySpec, request: pytest.FixtureRequest) -> Callable[[], None]:
    """Run one check of one object; see :func:`pytest_ddl.conformance.parametrize_with_ddl_checks`."""
    from pytest_ddl.items.unused import calls_of
    from pytest_ddl.object_checks import checking

    calls = calls_of(request.node, "ddl_check")
    run = checking(_harness(request.config), request.node, _ddl_spec, request.param)

    def check() -> None:
        __tracebackhide__ = True
        trains = request.param.check.is_training
        with calls.of("ddl_check"), calls.of("ddl_equivalence") if trains else nullcontext():
            run()

    return check


@pytest.fixture
def ddl_gate(request: pytest.FixtureRequest) -> Any:
    """Measure whether a training function became slower between the versions of ``--ddl-gate=BASE..HEAD``.

    Returns the result of a pass. Fails the test for a regression, and if a regression could not be ruled out. See
    :func:`pytest_ddl.bench.gate.gate` for the arguments.
    """
    config = request.config
    versions = config.stash[SETTINGS]["gate"]
    if not versions:
        pytest.skip("--ddl-gate=BASE..HEAD was not given, so there are no versions to compare")
    from pytest_ddl.bench.gate.gating import GateFailedError, gate_in_test
    from pytest_ddl.items.gated import GATED
    from pytest_ddl.items.unused import calls_of

    calls = calls_of(request.node, "ddl_gate")

    def measure(target: Any, strategies: Any = ("one_device",), **options: Any) -> Any:
        __tracebackhide__ = True
        with calls.of("ddl_gate"):
            try:
                result = gate_in_test(versions, config.rootpath, target, strategies, **options)
            except GateFailedError as failed:
                request.node.user_properties.append((GATED, failed.verdict))
                pytest.fail(str(failed), pytrace=False)
        request.node.user_properties.append((GATED, result.verdict.value))
        return result

    return measure
