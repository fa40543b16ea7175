"""Ask Keras for everything impossible that it refuses, and look that it still does, with a message about it.

Who gets no such message trains something else than what was meant, or has to look for the mistake in TensorFlow.
"""

from __future__ import annotations

from functools import cache

import pytest

from suites.parameters.classes import parameters
from suites.parameters.spaces import Wrong
from suites.properties.refusing import CONFIGURED, GROUPS, SHARED, load, members, questions, refused

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning"),
]

NUMBERS = ("0", "-1", "1.5", "-0.5", "word")
"""Values whose meaning is that of the parameter, whatever the number of dimensions of the layer is."""
OTHER_MEANING = ("factor", "sparse", "thresholds", "data_format")
"""Parameters that mean something else in some class, or of which a value that is false means the default."""
KNOWN = {
    "filters_of_recurrent_images": [("layers", f"ConvLSTM{number}D", "filters") for number in (1, 2, 3)],
    "kernel_of_a_blur": [("layers", "RandomGaussianBlur", "kernel_size")],
    "modes_of_images": [
        *(("layers", "Resizing", mode) for mode in ("interpolation", "fill_mode")),
        ("layers", "UpSampling2D", "interpolation"),
    ],
    "padding_of_windows": [
        ("layers", f"{kind}Pooling{n}D", "padding") for kind in ("Average", "Max") for n in (1, 2, 3)
    ],
    "seed_of_attention": [("layers", kind, "seed") for kind in ("Attention", "MultiHeadAttention")],
    "value_range_of_equalization": [("layers", "Equalization", "value_range")],
}
"""What some classes take although their siblings refuse it, in Keras 3.15."""
ELSEWHERE = [
    ("constraints", "MinMaxNorm", "rate"),
    ("layers", "GroupNormalization", "groups"),
    ("layers", "SimpleRNN", "activity_regularizer"),
]
"""Two have meanings of their own. The last is a known defect of ``test_penalties``."""


@pytest.fixture(autouse=True)
def this_version():
    from suites.subject import keras

    if not hasattr(keras.ops, "erfc"):
        pytest.skip("the table is of Keras 3.15: versions before it refuse less")


@pytest.mark.ddl_item("fit.subclass", shows="behavior")
@pytest.mark.parametrize("group", GROUPS)
def test_what_is_impossible_is_refused(group, ddl_strategy):
    table, wrong = load()[group], Wrong()
    known = {(name, parameter): {*words.split()} for name, its in table.items() for parameter, words in its.items()}
    for name, parameter, word, ask in questions(group):
        with wrong.of(name, parameter, word):
            assert name in table, "it has no row: python -m suites.properties.refusing writes it"
            if word in known.get((name, parameter), ()):
                why = refused(parameter, word, ask)
                assert not why, why
    wrong.check()


@cache
def usual() -> set[tuple[str, str]]:
    """Return the parameters with the values that most of at least four classes refuse."""
    rows = [(parameters(one), load()[group].get(name, {})) for group in CONFIGURED for name, one in members(group)]
    found = set()
    for parameter in {name for known, _ in rows for name in known} - {*OTHER_MEANING, *SHARED}:
        its = [row.get(parameter, "").split() for known, row in rows if parameter in known]
        for word in NUMBERS:
            told = [word in words or (word in NUMBERS[:4] and "0" in words and "-1" not in words) for words in its]
            if sum(told) >= 4 and sum(told) > 0.6 * len(told):
                found.add((parameter, word))
    return found


@pytest.mark.ddl_item("fit.subclass", shows="behavior")
@pytest.mark.parametrize("asked", ["all", *KNOWN])
def test_a_class_refuses_what_its_siblings_refuse(asked, ddl_strategy):
    wrong, words = Wrong(), usual()
    left = [one for its in KNOWN.values() for one in its]
    for group in CONFIGURED if asked == "all" else ["layers"]:
        for name, parameter, word, ask in questions(group):
            one = (group, name, parameter)
            chosen = one in KNOWN[asked] if asked in KNOWN else one not in [*left, *ELSEWHERE]
            if chosen and word in NUMBERS and (asked in KNOWN or (parameter, word) in words):
                with wrong.of(name, parameter, word):
                    try:
                        ask()
                    except (ValueError, TypeError, NotImplementedError):
                        continue
                    raise AssertionError("accepted")
    wrong.check()
    assert len(words) > 20
