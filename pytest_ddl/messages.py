"""Texts of messages: shorten those of exceptions to what explains the error, list names, and suggest similar ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

LINE = 160
"""Maximum number of characters of a message in one line of a report."""
WHOLE = 2000
"""Maximum number of characters of a message in a report."""

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'^\s*File "[^"]+", line \d+')
_NUMBER = r"(?:[-+]?(?:\d[\d_.]*(?:[eE][-+]?\d+)?j?|nan|inf)|True|False|\.\.\.)"
_NUMBERS = re.compile(rf"\[[\[\](,)\s]*{_NUMBER}(?:[\[\](),\s]+{_NUMBER})*[\[\](),\s]*\]")
"""Pattern of a list or array as Python, NumPy or TensorFlow prints it."""
_FEW = 40
"""Maximum number of characters of a list of numbers that is not shortened."""
_HEADINGS = re.compile(
    r"in user code:|Graph execution error:|Traceback \(most recent call last\):|<stack traces unavailable>|"
    r"Detected at node .*defined at \(most recent call last\):|Exception encountered:|"
    r"(?:[\w.]+: )?'*Exception encountered when calling (?:.*\.call\(\)|layer .*\(type \w+\))\.|"
    r"\d+ root error\(s\) found\.|"
    r"During handling of .*:|The above exception was .*:"
)
"""Lines that Keras and TensorFlow put around a message."""
_TRANSPORT = re.compile(
    r"Additional GRPC error information from remote target .*|:?\S*Error received from peer .*|"
    r"The error could be from a previous operation\. Restart your program to reset\."
)
"""Lines that TensorFlow adds to an error that it got from another process."""
_NODES = re.compile(r"\[\[(?:\{\{node [^}]*\}\}|[\w/.:]+)\]\]|\[Op:[^\]]*\]|\{\{function_node [^}]*\}\}|name: *$")


def listed(names: Iterable[object], most: int = 3) -> str:
    """Join the first names, and add the number of the others."""
    shown = list(map(str, names))
    more = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {more} more" if more > 0 else "")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of text, with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def similar(name: object, valid: Iterable[str], similarity: float = 0.6) -> str:
    """Return the most similar valid name, or an empty text if none is similar.

    :param similarity: least similarity, from 0 to 1.
    """
    # Imported only here because every pytest run with this plugin imports this module.
    from difflib import get_close_matches

    return next(iter(get_close_matches(str(name), list(valid), n=1, cutoff=similarity)), "")


def did_you_mean(name: object, valid: Iterable[str], similarity: float = 0.6) -> str:
    """Return `` (did you mean 'NAME'?)`` for the most similar valid name, or an empty text if none is similar."""
    close = similar(name, valid, similarity)
    return f" (did you mean {close!r}?)" if close else ""


def no_such_argument(what: str, name: str, valid: Iterable[str]) -> str:
    """Return the message about an argument that a function or marker does not have."""
    names = list(valid)
    return f"{what} has no argument {name!r}{did_you_mean(name, names)}; valid: {', '.join(names)}"


def not_one_of(name: str, value: object, valid: Iterable[str]) -> str:
    """Return the message about an argument whose value is not among the valid ones."""
    names = list(valid)
    return f"{name}={value!r} is not one of {', '.join(names)}{did_you_mean(value, names)}"


def shortened(message: str, limit: int = WHOLE) -> str:
    """Return a message without the values of tensors. If it is still too long, also leave out its middle."""
    return _cut(_without_numbers(_COLORS.sub("", message)), limit)


def summary(kind: str, message: str) -> str:
    """Describe an exception in one line, like the last line of a Python traceback.

    Keras and TensorFlow wrap the message of an exception in their own text, which is left out. If the rest is longer
    than :data:`LINE`, only the line that says what happened is used: the first one after the last text of a wrapper.
    Lines that follow it are advice, shapes or arguments.
    """
    name = kind.rpartition(".")[2]
    blocks = _explaining_blocks(message)
    if not blocks:
        return name
    whole = " ".join(dict.fromkeys(line for block in blocks for line in block))
    shown = whole if len(whole) <= LINE else _cut(_first_sentence(blocks[-1]), LINE, " ... ")
    # AutoGraph cannot raise some exceptions again. It raises a StagingError with the original type in the message.
    if shown.startswith(f"{name}:") or name == "StagingError":
        return shown
    return f"{name}: {shown}"


def _first_sentence(lines: list[str]) -> str:
    """Return the first line, and the lines that it announces by a colon if there is room for them."""
    shown = lines[0]
    for line in lines[1:]:
        if not shown.endswith(":") or len(f"{shown} {line}") > LINE:
            break
        shown = f"{shown} {line}"
    return shown


def _explaining_blocks(message: str) -> list[list[str]]:
    """Return the lines of a message that say what happened, in blocks between the texts of wrappers."""
    text = _without_numbers(_COLORS.sub("", message))
    text = re.sub(r",\s*numpy=\s*array\([^<>]*\)>", ">", text)
    text = re.sub(r"\n\s*(?:Arguments|Call arguments) received by .*", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*\(1\) [A-Z_]+:.*", "", text, flags=re.DOTALL)
    blocks: list[list[str]] = [[]]
    inside: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if _FRAME.match(line):
            inside = indent
            continue
        if inside is not None and line.strip() and indent > inside:
            continue  # source line of a frame
        inside = inside if not line.strip() else None
        kept = _NODES.sub("", line).strip()
        kept = re.sub(r"^\(0\) (?:[A-Z_]+:\s*)?", "", kept)
        if _HEADINGS.fullmatch(kept):
            blocks.append([])
        elif kept:
            blocks[-1].append(kept)
    own = [[line for line in block if not _TRANSPORT.fullmatch(line)] for block in blocks]
    return [block for block in own if block] or [block for block in blocks if block]


def _without_numbers(text: str) -> str:
    def described(match: re.Match[str]) -> str:
        values = match[0]
        if len(values) <= _FEW:
            return values
        numbers = re.findall(_NUMBER, values)
        # NumPy leaves out the middle of a large array, so the number of values is unknown.
        count = "" if "..." in numbers else f" {len(numbers)} values"
        return f"[{' '.join(number for number in numbers[:3] if number != '...')} ...{count}]"

    return _NUMBERS.sub(described, text)


def _cut(text: str, limit: int, gap: str | None = None) -> str:
    """Return a text without its middle if it is longer than the limit."""
    if len(text) <= limit:
        return text
    if gap is None:
        gap = f"\n... {len(text) - limit} characters left out ...\n"
    first = max(1, (limit - len(gap)) * 2 // 3)
    last = max(1, limit - len(gap) - first)
    return f"{text[:first].rstrip()}{gap}{text[-last:].lstrip()}"
