"""Collect the lines at which a program does what a finding may name: computes its loss, makes a variable, and so on."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from pytest_ddl.run_facts import RunFacts
from pytest_ddl.training import frames

LOSS, GRADIENT, APPLY, DATA, TRAIN, FIT = "loss", "gradient", "apply", "data", "train", "fit"
ALL_REDUCE, GATHER, REDUCE = "all_reduce", "gather", "reduce"
"""A reduction or a gather in a replica function, and a reduction of results outside of it."""
RESTORE, DRAW, VARIABLE, WRITE, VALUE = "restore", "draw {}", "variable {}", "write {}", "value {}"
"""Kinds of lines. ``{}`` is the position of a draw, the index of a variable, a path, or the name of a value."""
START, ASSIGN, REDUCED = "start {}", "assign {}", "reduced {}"
"""An assignment to a variable before the first loop, one since then, and the reduction whose result is a value."""
OVERWRITE = "overwrite {}"
"""An assignment in a ``tf.function`` that replaces the value of a variable, and does not add to it."""
RATE, SCHEDULE = "rate {}", "rate_schedule {}"
"""The learning rate that a variable is updated with, and its schedule if that reads which replica it runs on."""
_LOOKS = 16
"""Maximum number of looks for one kind, because a program that runs eagerly passes its lines in every step."""
_RESULTS = 64
"""Maximum number of results of one reduction to remember."""


class Lines:
    """Lines of a program by kind, each as ``file:line``, in the order in which they ran first."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, None]] = {}
        self._looks: Counter[str] = Counter()
        self._created: dict[int, tuple[Callable[[], Any], str]] = {}
        """Id of a variable's handle -> weak reference to the variable, and the line that created it."""
        self._assigned: dict[int, tuple[Callable[[], Any], dict[str, list[str]]]] = {}
        """Id of a variable -> weak reference to it, and the lines that assigned it, by kind and the latest last."""
        self._received: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RESULTS))
        """Line of a reduction -> the numbers that it gave."""
        self._reduced: dict[str, set[str]] = {}
        """Name of a value -> the reductions that gave each of its numbers."""
        self.trains = False
        """True once a loop of the program began."""

    def add(self, kind: str, line: str = "") -> str:
        """Add the line of the program that this thread executes, or a line that is known already, and return it."""
        self._looks[kind] += 1
        place = line or frames.user_frames(1) if self._looks[kind] <= _LOOKS else ""
        if place:
            self._found.setdefault(kind, {}).setdefault(place)
        return place

    def add_function(self, kind: str, function: Any) -> bool:
        """Add the line at which a function is defined, and return True. A builtin or a partial function has none."""
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:
            self.add(kind, f"{code.co_filename}:{code.co_firstlineno}")
        return code is not None

    def create(self, variable: Any) -> None:
        """Remember that this thread creates a variable now."""
        handle = getattr(variable, "handle", None)
        line = frames.user_frames(1) if handle is not None else ""
        if line:
            self._created[id(handle)] = (weakref.ref(variable), line)

    def assign(self, variables: Sequence[Any], overwrites: bool = False) -> None:
        """Remember that the program gives variables new values now.

        :param overwrites: True for an assignment of the kind ``OVERWRITE``, which is remembered in addition.
        """
        kind, line = OVERWRITE if overwrites else ASSIGN if self.trains else START, ""
        for variable in variables:
            _made, lines = self._assigned.setdefault(id(variable), (weakref.ref(variable), {}))
            if len(lines.setdefault(kind, [])) < _LOOKS:
                line = line or frames.user_frames(1)
                lines[kind] = [*(known for known in lines[kind] if known != line), line]

    def created(self, components: Sequence[Any]) -> tuple[str, ...]:
        """Return the lines that created the components of a variable, as far as they were seen."""
        places = [self._created.get(id(getattr(part, "handle", None)), (None, "")) for part in components]
        return tuple(dict.fromkeys(line for made, line in places if made is not None and made() is not None))

    def assigned(self, variables: Sequence[Any], kind: str) -> tuple[str, ...]:
        """Return the lines that assigned one of the variables, the latest last."""
        known = [entry for variable in variables if (entry := self._assigned.get(id(variable))) is not None]
        return tuple(dict.fromkeys(line for made, lines in known if made() is not None for line in lines.get(kind, ())))

    def add_variable(self, index: int, variable: Any, components: tuple[Any, ...]) -> None:
        """Add the lines that created and assigned a watched variable, if they were seen."""
        for line in self.created(components):
            self.add(VARIABLE.format(index), line)
        for kind in (START, ASSIGN, OVERWRITE):
            for line in self.assigned((variable, *components), kind):
                self.add(kind.format(index), line)

    def receive(self, line: str, number: float) -> None:
        """Remember the result of a reduction."""
        self._received[line].append(number)

    def use(self, name: str, number: float) -> None:
        """Remember which reductions gave a number that the program reports under a name."""
        found = {line for line, numbers in tuple(self._received.items()) if number in tuple(numbers)}
        self._reduced[name] = found & self._reduced.get(name, found)

    def facts(self) -> RunFacts:
        """Return the fact ``lines`` of the run: kind -> its lines."""
        reduced = {REDUCED.format(name): tuple(lines) for name, lines in self._reduced.items() if len(lines) == 1}
        found = {kind: tuple(found) for kind, found in self._found.items()} | reduced
        return {"lines": found} if found else {}
