"""Options, environment, ini and markers: what is wrong is said in one line, what is right takes effect."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.installing import install_line

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestAssertRewriteWarning")
USES = """
import pytest
def test_x(ddl_strategy):
    pass
"""


def run(pytester: pytest.Pytester, *args: str) -> Any:
    """Run pytest in this process, without the plugins that it would import anew each time."""
    return pytester.runpytest_inprocess("-p", "no:hypothesispytest", "-p", "no:xdist", *args)


@pytest.mark.parametrize(
    ("option", "origin", "words"),
    [
        ("--ddl-strategy=typo", "command line", ["--ddl-strategy='typo'", "'typo'", "one_device, mirrored"]),
        ("--ddl-strategy=mirored", "command line", ["did you mean", "mirrored"]),
        ("--ddl-strategy=mirrored[replica=4]", "command line", ["'replica=4' is not a setting", "replicas=2"]),
        ("--ddl-strategy=mirrored[replicas=0]", "command line", ["replicas must be at least 1"]),
        ("--ddl-strategy=mirrored,", "command line", ["empty entry"]),
        ("--ddl-timeout=-1", "command line", ["--ddl-timeout='-1'", "not a positive number of seconds"]),
        ("--ddl-timeout=soon", "command line", ["not a positive number of seconds"]),
        ("--ddl-timeout=1e9", "command line", ["--ddl-timeout='1e9'", "more than 1000000 seconds"]),
        ("--ddl-device=x", "command line", ["--ddl-device='x'", "valid: auto, cpu, gpu, tpu"]),
        ("--ddl-keras=x", "command line", ["--ddl-keras='x'", "valid: keras, tf_keras"]),
        ("--ddl-launcher=x", "command line", ["--ddl-launcher='x'", "valid: local"]),
        ("--ddl-hosts=a", "command line", ["--ddl-hosts='a'", "local takes no hosts; leave it out, or give --"]),
        ("--ddl-sync", "command line", ["--ddl-sync=True", "the launcher local runs where the files are; leave it"]),
        ("--ddl-shared-dir=absent", "command line", ["--ddl-shared-dir='absent'", "there is no such folder; give one"]),
        ("--ddl-network=x", "command line", ["--ddl-network='x'", "valid: shared, isolated"]),
        ("--ddl-require=tpu", "command line", ["--ddl-require='tpu'", "tpu cannot run here: "]),
        ("--ddl-require=typo", "command line", ["--ddl-require='typo'", "valid"]),
    ],
)
@pytest.mark.parametrize("with_tests", [True, False])
def test_a_wrong_value_ends_the_run_with_one_line(
    pytester: pytest.Pytester, option: str, origin: str, words: list[str], with_tests: bool
) -> None:
    pytester.makepyfile(USES if with_tests else "def test_y(): pass")
    result = run(pytester, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.strip()]
    assert f"(from {origin})" in line
    assert not [word for word in words if word not in line], line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("STRATEGY", "typo", "'typo'"),
        ("TIMEOUT", "-1", "not a positive number of seconds"),
        ("DEVICE", "x", "valid: auto, cpu, gpu, tpu"),
        ("KERAS", "x", "valid: keras, tf_keras"),
        ("LAUNCHER", "x", "valid: local"),
        ("STRICT", "maybe", "is not a switch"),
        ("IN_PROCESS", "maybe", "is not a switch"),
        ("REQUIRE", "tpu", "tpu cannot run here"),
    ],
)
def test_wrong_values_of_environment_and_ini_name_their_origin(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    pytester.makepyfile(USES)
    monkeypatch.setenv(f"PYTEST_DDL_{name}", value)
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.strip()]
    assert f"(from PYTEST_DDL_{name})" in line
    assert words in line
    monkeypatch.delenv(f"PYTEST_DDL_{name}")
    pytester.makeini(f"[pytest]\nddl_{name.lower()} = {value}\n")
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.strip()]
    assert "(from ini)" in line
    assert words in line


def test_precedence_and_the_header(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini("[pytest]\nddl_timeout = 5\nddl_strategy = mirrored\nddl_strict = yes\n")
    pytester.makepyfile(
        """
        import pytest
        def test_x(ddl_strategy): pass
        @pytest.mark.ddl(strategies="central_storage")
        def test_marker(ddl_strategy): pass
        """
    )
    result = run(pytester, "--collect-only")
    result.stdout.fnmatch_lines(["ddl: strategy=mirrored (from ini), timeout=5.0 (from ini), strict=True (from ini)"])
    result.stdout.fnmatch_lines(["*test_x?mirrored?>", "*test_marker?central_storage?>"])
    monkeypatch.setenv("PYTEST_DDL_STRATEGY", "one_device")
    result = run(pytester, "--collect-only")
    result.stdout.fnmatch_lines(["ddl: strategy=one_device (from PYTEST_DDL_STRATEGY), *", "*test_x?one_device?>"])
    result = run(pytester, "--collect-only", "--ddl-strategy=ps,mirrored[replicas=4]")
    result.stdout.fnmatch_lines(["ddl: strategy=ps,mirrored[[]replicas=4[]] (from command line), *"])
    result.stdout.fnmatch_lines(["*test_x?parameter_server?>", "*test_x[[]mirrored[[]replicas=4[]][]]>"])
    result.stdout.fnmatch_lines(["*test_marker?central_storage?>"])


def test_outside_pytest_options_come_from_the_environment() -> None:
    settings = resolve_without_pytest({"PYTEST_DDL_TIMEOUT": "7", "PYTEST_DDL_STRICT": "yes"})
    assert settings["timeout"] == 7.0
    assert settings["strict"] is True
    assert settings.not_default() == ["timeout=7.0 (from PYTEST_DDL_TIMEOUT)", "strict=True (from PYTEST_DDL_STRICT)"]
    with pytest.raises(pytest.UsageError, match=r"--ddl-device='x' \(from PYTEST_DDL_DEVICE\): valid: auto"):
        resolve_without_pytest({"PYTEST_DDL_DEVICE": "x"})


def test_defaults_are_not_in_the_header(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_y(): pass")
    assert "ddl:" not in run(pytester).stdout.str()


@pytest.mark.parametrize("arguments", [("-n", "2"), ("-nauto",), ("--numprocesses=2",)])
def test_without_xdist_the_error_says_what_to_install(pytester: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    pytester.makepyfile("def test_y(): pass")
    result = run(pytester, "-p", "no:xdist", *arguments)
    result.stderr.fnmatch_lines(["*unrecognized arguments: *", "*-n: needs pytest-xdist: pip install pytest-xdist"])
    assert "xdist" not in run(pytester, "-p", "no:xdist", "-k", "-n").stderr.str()


def test_an_unknown_environment_variable_warns(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DDL_TIMEUOT", "3")
    pytester.makepyfile("def test_y(): pass")
    result = run(pytester)
    result.stdout.fnmatch_lines(["*PYTEST_DDL_TIMEUOT is not known to pytest-ddl*did you mean PYTEST_DDL_TIMEOUT?*"])
    # In an editable installation, pytest warns that the plugin, which this process has imported, is not rewritten.
    strict = run(pytester, "-W", "error", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    strict.stderr.fnmatch_lines(["ERROR: environment variable PYTEST_DDL_TIMEUOT is not known*"])
    assert strict.ret is pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("decorator", "words"),
    [
        (
            "ddl(strategy='mirrored')",
            "has no argument 'strategy' (did you mean 'strategies'?); valid: strat",
        ),
        ("ddl('mirrored')", "takes keyword arguments only, not 'mirrored'"),
        ("ddl(strategies='typo')", "ddl(strategies=…): 'typo'"),
        ("ddl(strategies=[])", "strategies= is empty"),
        ("ddl(strategies=3)", "strategies=3 must be a name or a list of names"),
        ("ddl(replicas=0)", "replicas=0 must be a whole number"),
        ("ddl(workers=True)", "workers=True must be a whole number"),
        ("ddl(timeout=-1)", "timeout=-1 must be a positive number"),
        ("ddl(isolation='clean')", "isolation='clean' is not one of reuse, fresh"),
        ("ddl(device='x')", "device='x' is not one of auto, cpu, gpu, tpu"),
        ("gpu(max=1)", "@pytest.mark.gpu has no argument 'max'; valid: min"),
        ("gpu(min='two')", "@pytest.mark.gpu: min='two' must be a whole number"),
        ("tpu(4)", "@pytest.mark.tpu takes no arguments"),
    ],
)
def test_a_wrong_marker_fails_at_collection_with_one_line(
    pytester: pytest.Pytester, decorator: str, words: str
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{decorator}\ndef test_x(ddl_strategy): pass")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    lines = [line for line in result.outlines if words in line and not line.startswith(("ERROR", "FAILED"))]
    assert len(lines) == 1, result.stdout.str()
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("@pytest.mark.ddl(strategies='mirrored')\ndef test_x(): pass", "has no effect"),
        (
            "@pytest.mark.ddl(strategies='mirrored')\ndef test_x(one_device_strategy): pass",
            "strategies='mirrored' has no effect on a test that asks for one_device_strategy",
        ),
        (
            "@pytest.mark.ddl(strategies='parameter_server', replicas=4)\ndef test_x(ddl_strategy): pass",
            "replicas=4 is not a setting of parameter_server",
        ),
        ("def test_x(ddl_strategy, ddl_cluster): pass", "use one of them"),
        ("def test_x(mirrored_strategy, one_device_strategy): pass", "one strategy at a time"),
        ("@pytest.mark.parametrize('ddl_strategy', ['mirrored'])\ndef test_x(ddl_strategy): pass", "add indirect=True"),
        (
            "@pytest.mark.virtual_gpus(cuont=3)\ndef test_x(virtual_gpus): pass",
            "(did you mean 'count'?)",
        ),
        ("@pytest.mark.virtual_gpus(0)\ndef test_x(virtual_gpus): pass", "count=0 must be a whole number"),
    ],
)
def test_what_cannot_be_run_fails_at_collection(pytester: pytest.Pytester, body: str, words: str) -> None:
    pytester.makepyfile(f"import pytest\n{body}")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    assert words in result.stdout.str()


@pytest.mark.parametrize("marked", ["class", "method"])
def test_a_marked_test_case_is_refused(pytester: pytest.Pytester, marked: str) -> None:
    on_class, on_method = (
        "@pytest.mark.ddl(strategies='mirrored')" if marked == one else "" for one in ("class", "method")
    )
    pytester.makepyfile(f"""
        import pytest, unittest
        {on_class}
        class TestX(unittest.TestCase):
            {on_method}
            def test_x(self): pass
    """)
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "has no effect on a test of unittest.TestCase" in result.stderr.str()


def test_a_marker_that_no_test_uses_is_warned_of(pytester: pytest.Pytester) -> None:
    marked = "import pytest, unittest\npytestmark = pytest.mark.ddl(strategies='one_device')\n"
    pytester.makepyfile(
        test_used=f"{marked}def test_plain(): pass\ndef test_with(ddl_cluster): ddl_cluster.run(int)",
        test_idle=f"{marked}class TestX(unittest.TestCase):\n    def test_x(self): pass",
    )
    said = "@pytest.mark.ddl on test_{}.py has no effect".format
    output = run(pytester, "--collect-only", "-Wdefault").stdout.str()
    assert said("idle") in output
    assert said("used") not in output
    # Whoever takes tests away may leave only those that do not use the marker.
    pytester.makeconftest(
        "def pytest_collection_modifyitems(items): items[:] = [i for i in items if i.name != 'test_with']"
    )
    for chosen in ([], ["-k", "plain"], ["test_used.py::test_plain"]):
        assert said("used") not in run(pytester, "--collect-only", "-Wdefault", *chosen).stdout.str()
    assert run(pytester, "--collect-only", "-Werror").ret == pytest.ExitCode.USAGE_ERROR


def test_a_marker_on_a_class_may_be_for_some_of_its_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.ddl(strategies="mirrored")
        class TestSome:
            def test_plain(self): pass
            def test_with(self, ddl_cluster): ddl_cluster.run(int)
        """
    )
    result = run(pytester, "--collect-only", "-q")
    assert result.ret == 0
    assert "2 tests collected" in result.stdout.str()


def test_a_wrong_indirect_variant_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("ddl_strategy", ["mirored"], indirect=True)
        def test_x(ddl_strategy): pass
        """
    )
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*parametrize('ddl_strategy', …): *mirored*"])


def test_getfixturevalue_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_x(request): request.getfixturevalue('ddl_strategy')")
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*request.getfixturevalue() comes too late*"])


def test_unavailable_strategies_are_kept_and_skipped_with_the_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USES)
    result = run(pytester, "--ddl-strategy=tpu", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*tpu*TPU_NAME is not set*"])


def test_a_device_that_is_not_there_is_a_reason_to_skip(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USES)
    result = run(pytester, "--ddl-strategy=mirrored", "--ddl-device=tpu", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*runs on CPUs and GPUs only*"])


def test_the_list_of_strategies(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--ddl-list")
    assert result.ret == 0
    for name in ("one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"):
        result.stdout.fnmatch_lines([f"{name}*", "*available*"])
    result.stdout.fnmatch_lines(["*not available: *TPU_NAME is not set*"])


BLOCKER = """
import importlib.util

original = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "tensorflow" else original(name, *rest)
"""


def test_a_missing_tensorflow_is_an_error_and_no_skip(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USES, blocker=BLOCKER)
    for options in ([], ["--ddl-strategy=available"]):
        result = pytester.runpytest_subprocess("-p", "blocker", *options)
        assert result.ret not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
        text = result.stdout.str() + result.stderr.str()
        # In CI pytest says it a second time, in its summary.
        told = [line for line in text.splitlines() if not line.startswith("ERROR test_")]
        lines = [line for line in told if "pytest-ddl needs TensorFlow 2.16 or newer" in line]
        assert len(lines) == 1, text
        assert install_line("cpu") in lines[0]
        assert "skipped" not in text


def test_a_broken_tensorflow_is_an_error_of_every_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytester.mkpydir("tensorflow")
    (package / "__init__.py").write_text("raise ImportError('libsomething.so.12 cannot be opened')")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    pytester.makepyfile(USES + "def test_z(ddl_strategy): pass")
    result = pytester.runpytest_subprocess("--ddl-strategy=mirrored")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["cannot import tensorflow: libsomething.so.12 cannot be opened"])
