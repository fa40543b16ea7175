"""The mark ``nightly``: which tests run for each commit."""

import pytest

from tests.nightly import left_to_the_night

INI = "[pytest]\nmarkers =\n    slow\n    nightly(each_commit)\n"


@pytest.mark.parametrize(
    ("mark", "kept"),
    [
        ("nightly", []),
        ("nightly(each_commit=('a-1',))", ["a-1"]),
        ("nightly(each_commit=('a',))", ["a-1", "a-2"]),
        ("nightly(each_commit=('a', 'b-2'))", ["a-1", "a-2", "b-2"]),
        # A renamed parameter must not leave a commit without the test.
        ("nightly(each_commit=('a', 'c'))", ["a-1", "a-2", "b-1", "b-2"]),
    ],
)
def test_a_mark_keeps_the_ids_it_names(pytester, mark, kept):
    pytester.makeini(INI)
    items = pytester.getitems(f"""
        import pytest

        @pytest.mark.{mark}
        @pytest.mark.slow
        @pytest.mark.parametrize("case", ["a-1", "a-2", "b-1", "b-2"])
        def test_it(case):
            pass
    """)
    night = left_to_the_night(items)
    assert [item.callspec.id for item in items if item not in night] == kept


def test_an_equal_id_goes_before_those_that_begin_with_it(pytester):
    pytester.makeini(INI)
    items = pytester.getitems("""
        import pytest

        @pytest.mark.nightly(each_commit=("term",))
        @pytest.mark.parametrize("case", ["term", "term-later"])
        @pytest.mark.slow
        def test_it(case):
            pass

        @pytest.mark.nightly
        def test_quick():
            pass
    """)
    assert [item.name for item in items if item not in left_to_the_night(items)] == ["test_it[term]", "test_quick"]
