"""Notes of a run or of a report: a sentence for the reader, with a kind for the code that has to know what it says."""

from __future__ import annotations

from enum import Enum


class NoteKind(Enum):
    """Subject of a note. Code reads the kind and never the text."""

    # Kinds of notes that a rank leaves in its record.
    NEVER_BEGAN = "a loop over run.steps or run.batches, or a generator, was made and never begun"
    RUN_AGAIN = "one device was run a second time, because its first process ended"
    NOT_RUN = "run.fit was called after the limit of steps"
    EPOCHS_AS_STEPS = "epochs are recorded as steps"
    DATA_ENDED = "the data of a worker ended before all scheduled steps had run"
    UNFINISHED_STEP = "the data ended within a step"
    BATCHES = "batches were not observed"
    COLLECTIVES = "collectives were not observed"
    DRAWS = "random operations were not observed"
    NOT_REPLACED = "a random operation could not be replaced"
    REDUCTIONS = "reductions were not observed"
    ASSIGNMENTS = "assignments were not observed"
    GRADIENTS = "gradients were not observed"
    GRAPHS = "graphs were not analyzed"
    VARIABLES = "a variable, metric or learning rate could not be read or set"
    SCOPES = "a scope was not left"
    LAYOUTS = "layouts were not read"
    LOSSES = "a loss was not recorded"
    WRITES = "writes were not observed"
    # Kinds of notes that a report adds.
    HOW = "how the programs were run"
    NOT_COMPARED = "what was not compared"
    CONSEQUENCES = "differences that follow from the reported ones"


class Note(str):
    """Sentence that a report shows, with its kind."""

    kind: NoteKind

    def __new__(cls, kind: NoteKind, text: str) -> Note:
        note = super().__new__(cls, text)
        note.kind = kind
        return note

    def __getnewargs__(self) -> tuple[NoteKind, str]:  # type: ignore[override]  # the arguments of our own __new__
        return self.kind, str(self)
