"""Notes: text for the reader and a kind for the code, also after a journey between processes."""

import copy
import pickle

import pytest

from pytest_ddl.notes import Note, NoteKind

NOTE = Note(NoteKind.GRADIENTS, "gradients could not be recorded")


@pytest.mark.parametrize("travelled", [lambda note: pickle.loads(pickle.dumps(note)), copy.copy, copy.deepcopy])
def test_a_note_keeps_its_kind(travelled):
    again = travelled(NOTE)
    assert again == NOTE == "gradients could not be recorded"
    assert again.kind is NoteKind.GRADIENTS
