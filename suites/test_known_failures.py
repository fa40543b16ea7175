"""Test how the list of known failures is parsed and matched, and which errors an invalid entry gives."""

from __future__ import annotations

import pytest

from pytest_ddl.equivalence.known.catalogue import KNOWN
from suites.known_failures import FILE, load

ENTRY = """
[[failure]]
test = 'test_training\\.py::test_fit\\[.*uneven'
strategies = ["mirrored"]
causes = ["reported-loss-wrong"]
keras = ">=3.15,<3.16"
reason = "why"
"""


@pytest.mark.parametrize(
    ("nodeid", "strategy", "expected"),
    [
        ("suites/test_training.py::test_fit[mirrored-mlp-uneven]", "mirrored", True),
        ("suites/test_training.py::test_fit[mirrored-mlp-even]", "mirrored", False),
        ("suites/test_training.py::test_fit[central_storage-mlp-uneven]", "central_storage", False),
    ],
)
def test_an_entry_is_about_a_test_under_a_strategy(nodeid, strategy, expected):
    (entry,) = load(ENTRY)
    assert entry.matches(nodeid, strategy) is expected


@pytest.mark.parametrize(("keras", "expected"), [("3.14.9", False), ("3.15.1", True), ("3.16", False)])
def test_an_entry_is_about_versions(keras, expected):
    (entry,) = load(ENTRY)
    assert entry.applies({"keras": keras, "tensorflow": "2.21.0"}) is expected


def test_an_entry_without_report_says_so():
    (entry,) = load(ENTRY)
    assert entry.explanation == "why (not reported yet)"


def test_an_entry_of_the_catalogue_has_its_causes_versions_and_link():
    (entry,) = load("[[failure]]\ntest = 'test_fit'\nknown = 'keras-fit-multi-worker'\n")
    behavior = KNOWN["keras-fit-multi-worker"]
    assert (entry.causes, entry.reason, entry.link) == (behavior.causes, behavior.title, behavior.link)
    assert entry.applies({"keras": "3.15.1", "tensorflow": "2.21.0"})
    assert not entry.applies({"keras": "3.16.0", "tensorflow": "2.21.0"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[failure]]\ntest = 'x'\nknown = 'keras-fit'\n", "'keras-fit' is no known behavior; valid: keras-seed"),
        ("[[failure]]\ntest = 'x'\nknown = 'keras-fit-strings'\nlink = 'x'\n", r"unknown \['link'\]"),
        (ENTRY.replace("keras =", "kera ="), r"unknown \['kera'\]"),
        (ENTRY.replace("reason =", "link ="), r"missing \['reason'\]"),
    ],
)
def test_a_wrong_entry_is_shown(text, told):
    with pytest.raises(ValueError, match=told):
        load(text)


def test_every_cause_exists():
    from pytest_ddl.equivalence.causes import CAUSES

    named = {cause for entry in load(FILE.read_text()) for cause in entry.causes}
    assert named <= set(CAUSES)
