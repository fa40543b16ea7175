"""Training function that a command line names; it is imported on the ranks only, never in the command itself."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.target import Target


@dataclass(frozen=True)
class AdvisedProgram:
    """Training function in a file. It loads the file when it is called, on a rank."""

    file: str
    """Absolute path."""
    function: str
    folder: str
    """Folder in which the command runs; its modules can be imported."""

    @classmethod
    def find(cls, text: str) -> AdvisedProgram:
        """Find ``MODULE:FUNCTION`` or ``path/to/file.py:FUNCTION``.

        :raises pytest_ddl.target.TargetError: if the file or the function does not exist.
        """
        target = Target.find(text)
        return cls(str(target.file.absolute()), target.function, str(Path.cwd()))

    @property
    def func(self) -> Callable[[Any], Any]:
        """Function itself. Code that looks into a ``functools.partial`` finds its function by the same name."""
        name, folder = self._module()
        for place in (self.folder, folder):
            if place not in sys.path:
                sys.path.insert(0, place)
        loaded = sys.modules.get(name)
        if loaded is None or getattr(loaded, "__file__", None) != self.file:
            spec = importlib.util.spec_from_file_location(name, self.file)
            if spec is None or spec.loader is None:
                raise ImportError(f"{self.file} is not a Python file")
            loaded = importlib.util.module_from_spec(spec)
            sys.modules[name] = loaded
            spec.loader.exec_module(loaded)
        function: Callable[[Any], Any] = getattr(loaded, self.function)
        return function

    def _module(self) -> tuple[str, str]:
        """Return the name by which other modules import this one, and the folder from which."""
        path = Path(self.file)
        names, folder = [path.stem], path.parent
        while (folder / "__init__.py").is_file():
            names.insert(0, folder.name)
            folder = folder.parent
        return ".".join(names), str(folder)

    def __call__(self, run: Any) -> None:
        self.func(run)
