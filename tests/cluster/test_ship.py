"""Shipping functions: what travels, what does not, and what the message says."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_ddl.cluster import overrides, ship
from pytest_ddl.cluster.ship import ShippingError
from pytest_ddl.cluster.state import user_modules

counter = 0


def count() -> int:
    global counter
    counter += 1
    return counter


def elsewhere(job: ship.Job, folder: Path) -> Any:
    """Run a job in a fresh process and return its result."""
    (folder / "job").write_bytes(pickle.dumps(job))
    code = (
        "import pickle, sys; from pathlib import Path; folder = Path(sys.argv[1]);"
        "(folder / 'result').write_bytes(pickle.dumps(pickle.loads((folder / 'job').read_bytes()).call()))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)
    return ship.unpack(pickle.loads((folder / "result").read_bytes()))


def test_a_function_of_a_test_module_travels(tmp_path: Path) -> None:
    assert elsewhere(ship.pack(count), tmp_path) == 1


def test_a_function_of_a_module_whose_package_is_no_file_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What --import-mode=importlib makes of a/b/test_it.py if the folders have no __init__.py.
    file = tmp_path / "test_it.py"
    file.write_text("def number(): return 3")
    spec = importlib.util.spec_from_file_location("json.no_folder.test_it", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for name in ("json.no_folder", "json.no_folder.test_it"):
        monkeypatch.setitem(sys.modules, name, module if name == spec.name else ModuleType(name))
    spec.loader.exec_module(module)
    assert elsewhere(ship.pack(module.number), tmp_path) == 3


def test_the_source_of_a_closure_is_found_where_it_arrives(tmp_path: Path) -> None:
    # AutoGraph converts a function from its source, and messages name lines of it. cloudpickle 3.1.3 drops the file.
    def outer() -> str:
        def inner() -> str:
            return inspect.getsource(inner)

        return inner()

    assert elsewhere(ship.pack(outer), tmp_path).lstrip().startswith("def inner() -> str:")


def test_a_closure_and_a_lambda_travel(tmp_path: Path) -> None:
    base = 5

    def add(number: int, *, more: int) -> int:
        return base + number + more

    assert elsewhere(ship.pack(add, (1,), {"more": 2}), tmp_path) == 8
    assert elsewhere(ship.pack(lambda: base), tmp_path) == 5


def test_an_argument_that_cannot_travel_is_named() -> None:
    with pytest.raises(ShippingError, match=r"count with its arguments cannot be sent .*lock"):
        ship.pack(count, (threading.Lock(),))


def test_a_result_that_cannot_travel_is_named() -> None:
    job = ship.pack(lambda: threading.Lock())
    with pytest.raises(ShippingError, match=r"the result of .*<lambda> \(a lock\) cannot be sent"):
        job.call()


def _refuse() -> None:
    raise RuntimeError("not here")


class NotWelcome:
    def __reduce__(self) -> Any:
        return _refuse, ()


def test_a_result_that_cannot_be_read_says_so() -> None:
    with pytest.raises(ShippingError, match=r"result of a rank cannot be read in this process: RuntimeError: not here"):
        ship.unpack(ship.pack(NotWelcome).call())


def test_a_failed_result_is_marked() -> None:
    class Verdict:
        failed = True

    assert ship.pack(Verdict).call().failed
    assert not ship.pack(lambda: None).call().failed


def test_calls_do_not_see_what_earlier_calls_left_in_modules(tmp_path: Path) -> None:
    (tmp_path / "job").write_bytes(pickle.dumps(ship.pack(count)))
    code = (
        "import pickle, sys; from pathlib import Path; job = pickle.loads((Path(sys.argv[1]) / 'job').read_bytes());"
        "print([pickle.loads(job.call().data) for _ in range(3)])"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60, capture_output=True)
    assert result.stdout.decode().strip() == "[1, 1, 1]"


def test_a_job_takes_over_the_changed_globals_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ship.pack(count)
    monkeypatch.setattr(overrides, "collect", lambda _call: pytest.fail("searched again"))
    second = ship.pack(count, (), since=first)
    assert (second.modules, second.overrides) == (first.modules, first.overrides)


def test_installed_packages_are_not_user_modules() -> None:
    modules = ship.user_modules()
    assert __name__ in modules
    assert not [name for name in modules if name.split(".")[0] in ("pytest", "json", "pytest_ddl", "cloudpickle")]


def test_a_name_that_a_module_of_the_user_takes_over_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ddl_replaced"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert name not in ship.user_modules()
    module = ModuleType(name)
    module.__file__ = str(tmp_path / "ddl_replaced.py")
    monkeypatch.setitem(sys.modules, name, module)
    assert ship.user_modules()[name] == module.__file__


def test_a_module_that_is_built_in_is_not_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its origin is no file, so a list of the user's files has no place for it.
    reported: list[ModuleType] = []
    finder = user_modules._Finder(reported.append)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "_symtable", raising=False)
    assert importlib.import_module("_symtable").__spec__.origin == "built-in"  # type: ignore[union-attr]
    assert reported == []
