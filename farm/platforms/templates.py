"""The templates of a platform and the scripts beside them, as `dockerfiles/` of the project has them."""

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


@dataclass(frozen=True)
class Templates:
    """`folder` holds one platform's templates, `scripts` what is copied as it is."""

    folder: Path
    scripts: Path

    def names(self) -> list[str]:
        return self._environment().list_templates()

    def fill(self, name: str, values: Mapping[str, Any]) -> str:
        """The template `name` with its values.

        Raises:
            jinja2.TemplateError: It is wrong, or a value is missing.
            OSError: It cannot be read.
        """
        return self._environment().get_template(name).render(values)

    def script(self, name: str) -> str:
        """The text of a script that is copied as it is."""
        return read(f"{self.scripts}/{name}")

    def add_filter(self, name: str, function: Callable[[str], str]) -> None:
        self._environment().filters[name] = function

    def _environment(self) -> "jinja2.Environment":
        return _environment(self.folder)


@lru_cache(maxsize=8)
def _environment(folder: Path) -> "jinja2.Environment":
    """The templates of a folder; one that changes on disk is read again."""
    import jinja2  # noqa: PLC0415 only what renders waits for it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        # A value that a template names and no one gives is an error, not an empty word in a script.
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Dockerfiles and shell, quoted by the filter `quote`
    )
    environment.filters["quote"] = shlex.quote
    return environment


def read(path: str) -> str:
    """A file's text; it is read again only when it changed."""
    return _read(path, os.stat(path).st_mtime_ns)  # noqa: PTH116 every job asks for each script


@lru_cache(maxsize=64)
def _read(path: str, modified_ns: int) -> str:  # noqa: ARG001 a file that changes is read again
    return Path(path).read_text(encoding="utf-8")
