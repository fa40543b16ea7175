"""Count how often the body of a test is entered and finished. A rank sends the counts as proof that it ran the body."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Proof:
    """Counts of one test body since the last reset."""

    def __init__(self) -> None:
        self.entered = self.finished = 0

    def reset(self) -> None:
        self.entered = self.finished = 0

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a test function to count how often it is entered and finished. A method stays a method."""
        if inspect.ismethod(function):
            return types.MethodType(self.of(function.__func__), function.__self__)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def proved_coroutine(*args: Any, **kwargs: Any) -> Any:
                self.entered += 1
                return await self._coroutine(function(*args, **kwargs))

            return proved_coroutine

        @functools.wraps(function)
        def proved(*args: Any, **kwargs: Any) -> Any:
            self.entered += 1
            result = function(*args, **kwargs)
            # The call only made these objects. They run the body, if a plugin of the user drives them.
            if inspect.iscoroutine(result):
                return self._coroutine(result)
            if inspect.isgenerator(result):
                return self._generator(result)
            if not inspect.isasyncgen(result):
                self.finished += 1
            return result

        return proved

    async def _coroutine(self, body: Coroutine[Any, Any, Any]) -> Any:
        result = await body
        self.finished += 1
        return result

    def _generator(self, body: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        result = yield from body
        self.finished += 1
        return result
