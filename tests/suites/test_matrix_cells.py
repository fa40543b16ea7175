"""The cells of the version matrix, and the requirements of their environments."""

from __future__ import annotations

import pytest
from packaging.version import Version

from suites.matrix.cells import NEWEST, Cell, chosen, load, newest, plan
from suites.matrix.environments import forbidden, oldest, requirements

CELL = Cell("2.18.1", "3.8.0")
NEW = Cell("2.21.0", "3.15.1")


def test_an_entry_gives_a_cell_for_each_pair():
    text = "[[cells]]\ntensorflow = ['2.21.0', '2.16.2']\nkeras = ['3.15.1', '3.3.3']\n"
    assert [str(cell) for cell in load(text).cells] == [
        "TF 2.16.2 + Keras 3.3.3",
        "TF 2.16.2 + Keras 3.15.1",
        "TF 2.21.0 + Keras 3.3.3",
        "TF 2.21.0 + Keras 3.15.1",
    ]


def test_a_cell_has_the_package_that_is_tested_in_its_name():
    text = "[[cells]]\ntensorflow = ['2.16.2']\nkeras = ['newest']\nsubject = 'tf_keras'\noldest = true\n"
    (cell,) = load(text).cells
    assert (cell.id, cell.environment) == ("tf-2.16.2-tf_keras-oldest", "tf-2.16.2-oldest")
    assert str(cell) == "TF 2.16.2 + tf_keras 2.16, oldest dependencies"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[cells]]\ntensorflow = ['2.16.2']\n", r"missing \['keras'\]"),
        ("[[cells]]\ntensorflow = ['2.16.2']\nkeras = ['3.3.3']\npython = '3.10'\n", r"unknown \['python'\]"),
        ("[[cells]]\ntensorflow = ['2.16.2']\nkeras = ['oldest']\n", "must be versions"),
        ("[[cells]]\ntensorflow = ['2.16.2']\nkeras = ['3.3.3', '3.3.3']\n", "may occur once: tf-2.16.2-keras-3.3.3"),
        ("[[cells]]\ntensorflow = ['2.16.2']\nkeras = ['3.3.3']\nsubject = 'torch'\n", "subjects: keras, tf_keras"),
        ("[[cells]]\ntensorflow = ['nightly']\nkeras = ['3.3.3']\n", "both nightly"),
        ("[[cells]]\ntensorflow = ['2.16.2']\nkeras = ['3.3.3']\ndevice = 'tpu'\n", "device must be gpu"),
        ("cell = []\n", r"unknown \['cell'\]"),
    ],
)
def test_a_wrong_entry_is_shown(text, told):
    with pytest.raises(ValueError, match=told):
        load(text)


def test_the_newest_versions_are_those_of_the_file():
    cells = [cell for cell in plan().cells if not cell.nightly]
    assert newest()["tensorflow"] in {cell.tensorflow for cell in cells}
    assert all(Version(cell.tensorflow) <= Version(newest()["tensorflow"]) for cell in cells)
    assert all(Version(cell.keras) <= Version(newest()["keras"]) for cell in cells if cell.keras != NEWEST)


def test_cells_are_chosen_by_parts_of_their_ids():
    assert [cell.id for cell in chosen([CELL, NEW], ["keras-3.8"])] == ["tf-2.18.1-keras-3.8.0"]
    assert chosen([CELL, NEW], []) == [CELL, NEW]
    oldest = Cell("2.18.1", "3.8.0", oldest=True)
    assert chosen([oldest, CELL], [CELL.id]) == [CELL]
    assert chosen([oldest, CELL], ["keras-3.8.0"]) == [oldest, CELL]
    with pytest.raises(ValueError, match=r"no cell has '3\.99' in its id: tf-2"):
        chosen([CELL, NEW], ["3.99"])


def test_a_cell_on_a_gpu_runs_only_if_it_is_named():
    (there,) = load("[[cells]]\ntensorflow = ['2.18.1']\nkeras = ['3.8.0']\ndevice = 'gpu'\n").cells
    assert (there.id, str(there)) == ("tf-2.18.1-keras-3.8.0-gpu", "TF 2.18.1 + Keras 3.8.0, one GPU")
    assert chosen([CELL, there], []) == chosen([CELL, there], ["keras-3.8"]) == [CELL]
    assert chosen([CELL, there], [there.id]) == [there]
    assert requirements(there, [])[0] == "tensorflow[and-cuda]==2.18.1"
    assert there.environment != CELL.environment
    assert [cell.id for cell in plan().cells if cell.device]


def probe(tensorflow: str, keras: str, *, python: str = "3.11.7", **versions: str) -> dict[str, object]:
    wanted = ["keras>=3.12.0", "numpy>=1.26.0", 'tensorflow-intel==2.21.0; platform_system == "Windows"']
    return {
        "python": python,
        "versions": {"tensorflow": tensorflow, "keras": keras, "numpy": "2.0.2", **versions},
        "requires": {"tensorflow": wanted, "keras": ["numpy", "ml-dtypes"]},
        "pythons": {"tensorflow": ">=3.10", "keras": ">=3.11"},
    }


def test_a_pair_that_the_requirements_allow_is_not_struck():
    assert forbidden(probe("2.21.0", "3.15.1", ml_dtypes="0.5.1")) == ()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (probe("2.21.0", "3.8.0", ml_dtypes="0.5.1"), "tensorflow 2.21.0 requires keras>=3.12.0"),
        (probe("2.21.0", "3.15.1"), "keras 3.15.1 requires ml-dtypes"),
        (probe("2.21.0", "3.15.1", ml_dtypes="0.5.1", python="3.10.13"), "keras 3.15.1 requires Python >=3.11"),
        (probe("2.21.0", "3.15.1", ml_dtypes="0.5.1", numpy="1.25.0"), "tensorflow 2.21.0 requires numpy>=1.26.0"),
    ],
)
def test_a_pair_that_a_requirement_forbids_is_struck_with_it(given, told):
    assert forbidden(given) == (told,)


@pytest.mark.parametrize(
    ("text", "expected"), [("numpy>=1.26", "numpy==1.26"), ("psutil", "psutil"), ("x<9,>=2.1", "x==2.1")]
)
def test_the_oldest_version_is_the_lower_bound(text, expected):
    assert oldest(text) == expected


def test_an_environment_has_what_the_package_requires():
    assert requirements(Cell("2.16.2", "3.3.3", oldest=True), ["hypothesis>=6.100"]) == [
        *("tensorflow==2.16.2", "tf_keras==2.16.*", "pytest==9", "cloudpickle==3.0", "numpy==1.26", "packaging==22"),
        "hypothesis==6.100",
    ]
