"""Find the frames of the user's program in exceptions and stacks, and fold the frames of libraries."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_ddl.messages import shortened

_FRAME = re.compile(r'^(?P<indent>\s*)File "(?P<file>[^"]+)", line (?P<line>\d+),? in ?(?P<function>\S*)')
_PACKAGE = re.compile(r".*[/\\](?:site|dist)-packages[/\\](?P<name>[^/\\]+)[/\\]")
_TOOL = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD = tuple({sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep})
_GENERATED = re.compile(r"^<frozen |^<__array|__autograph_generated_file|\.p(?:yx|xi|xd)$")
"""Files of code that was generated, or compiled by Cython: their names in tracebacks are relative to its build."""


@dataclass(frozen=True)
class Frame:
    """Line of a function that an exception passed through or that a thread executes."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line} in {self.function}'

    @property
    def source(self) -> str:
        """Source text of the line, or an empty string if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()


def package_of(file: str) -> str:
    """Return the folder of the installed package that contains a file, or an empty string if there is none."""
    match = _PACKAGE.match(file)
    return match[0] if match else ""


def is_own(file: str, package: str = "") -> bool:
    """Return whether a file belongs to the user's program.

    Files of libraries, files of this package and generated code do not belong to it.

    :param package: folder of an installed package that also belongs to the program.
    """
    if package and file.startswith(package):
        return True
    return not (_GENERATED.search(file) or _PACKAGE.match(file) or file.startswith(_TOOL) or file.startswith(_STANDARD))


def frames_in(text: str) -> list[Frame]:
    """Return the frames that a text quotes, in the order of the text."""
    matches = (_FRAME.match(line) for line in text.splitlines())
    return [Frame(match["file"], int(match["line"]), match["function"]) for match in matches if match]


def own_frame(error: BaseException, package: str = "") -> Frame | None:
    """Return the frame of the user's program in which an exception was raised, or ``None`` if none is found.

    AutoGraph and TensorFlow's graphs write the frames into the message. Keras wraps an exception of the program in
    an exception of its own. The traceback of such a wrapped exception begins in the library that caught it.
    """
    last: Frame | None = None
    seen: set[int] = set()
    part: BaseException | None = error
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        passed = [Frame(entry.filename, entry.lineno or 0, entry.name) for entry in _entries(part)]
        if passed and is_own(passed[-1].file, package):
            return passed[-1]
        quoted = [frame for frame in frames_in(str(part)) if is_own(frame.file, package)]
        own = quoted or [frame for frame in passed if is_own(frame.file, package)]
        last = own[-1] if own else last
        if quoted:
            return last
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
        first = _entries(part)[:1] if part is not None else []
        if first and is_own(first[0].filename, package):
            return last  # the program caught this exception itself, so it is not the reason for the failure
    return last


def _entries(error: BaseException) -> traceback.StackSummary:
    return traceback.extract_tb(error.__traceback__)


def own_frame_of_traceback(text: str) -> Frame | None:
    """Return the last frame of the user's program in the text of a traceback."""
    frames = [frame for frame in frames_in(text) if is_own(frame.file)]
    return frames[-1] if frames else None


def threads_in(stacks: str) -> list[str]:
    """Return the stack of each thread of a process, that of the main thread first, with the innermost frame first.

    The text comes from :mod:`faulthandler`, which writes the main thread last.
    """
    *others, main = stacks.strip().split("\n\n")
    return [main, *others]


def own_frame_of_stacks(text: str) -> Frame | None:
    """Return the innermost frame of the user's program in the stacks of a process. Search the main thread first."""
    for thread in threads_in(text):
        for frame in frames_in(thread):
            if is_own(frame.file) and frame.file != "<string>":  # the outermost frame of a rank
                return frame
    return None


def folded(text: str, package: str = "") -> str:
    """Shorten a traceback or stacks.

    One line replaces each sequence of library frames. Frames of this package are left out. Long messages are cut.
    """
    lines: list[str] = []
    hidden: list[Frame] = []
    other: list[str] = []
    indent = "  "

    def flush_other() -> None:
        if other:
            lines.extend(shortened("\n".join(other)).splitlines())
            other.clear()

    def flush_hidden() -> None:
        if hidden:
            lines.append(indent + _described(hidden))
            hidden.clear()

    for frame, block in _blocks(text):
        if frame is None:
            if hidden and not "".join(block).strip():
                continue  # TensorFlow's graphs quote frames with empty lines between them
            flush_hidden()
            other.extend(block)
            continue
        flush_other()
        indent = block[0][: len(block[0]) - len(block[0].lstrip())]
        if not is_own(frame.file, package):
            if not frame.file.startswith(_TOOL):
                hidden.append(frame)
            continue
        flush_hidden()
        lines.append(block[0])
        lines.extend(block[1:] or ([f"{indent}  {frame.source}"] if frame.source else []))
    flush_other()
    flush_hidden()
    return "\n".join(lines)


def _described(frames: list[Frame]) -> str:
    names = dict.fromkeys(_library(frame.file) for frame in frames)
    return f"[{len(frames)} frame{'s' if len(frames) > 1 else ''} in {', '.join(names)}]"


def _library(file: str) -> str:
    package = _PACKAGE.match(file)
    if package:
        return package["name"]
    return "AutoGraph" if "__autograph_generated_file" in file else "Python"


def _blocks(text: str) -> Iterator[tuple[Frame | None, list[str]]]:
    """Yield each frame of a text with its lines, and every other line with ``None``."""
    frame: Frame | None = None
    block: list[str] = []
    for line in text.splitlines():
        match = _FRAME.match(line)
        belongs = frame is not None and line.strip() and _indent(line) > _indent(block[0])
        if match or not belongs:
            if block:
                yield frame, block
            frame = Frame(match["file"], int(match["line"]), match["function"]) if match else None
            block = []
        block.append(line)
    if block:
        yield frame, block


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
