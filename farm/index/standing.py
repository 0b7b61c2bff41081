"""Statements about a wheel: why it is withdrawn, and what was tested of it.

`farm site build` puts what was tested into `catalog.wheels.json`, for programs such as `farm detect`.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from farm.base.errors import FarmError
from farm.base.text import short
from farm.index.pages import File
from farm.index.reader import Reader

KEY = "catalog.wheels.json"
WITHDRAWN = "built, and withdrawn from the index"

Said = Annotated[str, AfterValidator(short)]


class Test(BaseModel):
    """One smoke test: on which CPU and card, when, and how each part ended."""

    model_config = ConfigDict(frozen=True)

    where: Said
    date: Said
    outcome: Said


class Standing(BaseModel):
    """The site's word on a published wheel (`published, CPU part tested; GPU part not run`), and its smoke tests."""

    model_config = ConfigDict(frozen=True)

    state: Said
    tests: tuple[Test, ...] = ()


class _Document(BaseModel):
    schema_version: int = Field(default=1, alias="schema")
    wheels: dict[str, Standing]


def render(wheels: Mapping[str, Standing]) -> bytes:
    """`catalog.wheels.json` of wheels by their file names."""
    return _Document(wheels=dict(sorted(wheels.items()))).model_dump_json(by_alias=True, indent=1).encode()


def standing(reader: Reader, filename: str) -> Standing | None:
    """The last built site's statement about a wheel; None where it has none."""
    try:
        data = reader.get(KEY)
        return None if data is None else _Document.model_validate_json(data).wheels.get(filename)
    # What was tested is worth a word, but nobody's pip line depends on it.
    except (FarmError, ValidationError):
        return None


def withdrawn(file: File) -> str | None:
    """Why installers do not get a wheel: it was yanked. None: they do."""
    if file.yanked is False:
        return None
    return short(f"yanked: {file.yanked}" if isinstance(file.yanked, str) and file.yanked else "yanked")
