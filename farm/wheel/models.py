"""The base of what is reported and read back, and text out of wheels."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from farm.base.text import printable

Printable = Annotated[str, AfterValidator(printable)]
"""Text out of a wheel, made safe for a terminal."""


class Frozen(BaseModel):
    """Immutable, and strict about what it is read from. Validators are made when a model is first used."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
