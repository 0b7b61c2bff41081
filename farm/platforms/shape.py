"""The names of platforms and machines as types of fields that are read from a file."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from farm.base.text import nearest
from farm.platforms.facts import MACHINES, PLATFORMS


def _one_of(kind: str, known: Iterable[str]) -> tuple[AfterValidator, Any]:
    words = tuple(known)

    def check(word: str) -> str:
        if word in words:
            return word
        near = nearest(word, words) or words
        what = {"kind": kind, "word": word, "near": ", ".join(near)}
        raise PydanticCustomError("unknown_word", "unknown {kind} '{word}'; nearest: {near}", what)

    def describe(schema: dict[str, Any]) -> None:
        others = dict(schema)
        schema.clear()
        schema.update(enum=list(words), **others)  # in the order in which pydantic writes a Literal

    return AfterValidator(check), Field(json_schema_extra=describe)


_platform_check, _platform_schema = _one_of("platform", PLATFORMS)
_machine_check, _machine_schema = _one_of("machine", MACHINES)
_kinds = [f"{each.name}-{machine}" for each in PLATFORMS.values() for machine in each.built_on]
_kind_check, _kind_schema = _one_of("platform and machine", _kinds)

PlatformName = Annotated[str, _platform_check, _platform_schema]
Machine = Annotated[str, _machine_check, _machine_schema]
PlatformMachine = Annotated[str, _kind_check, _kind_schema]
"""Such as `linux-x86_64`: what the farm builds for."""
