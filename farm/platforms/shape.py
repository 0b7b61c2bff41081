"""The names of platforms and machines as types of fields that are read from a file."""

from typing import Annotated

from pydantic import Field

from farm.base.yamlfile import word_of
from farm.platforms.facts import MACHINES, PLATFORMS

PLATFORM_MACHINES = [
    f"{facts.name}-{machine}" for facts in PLATFORMS.values() for machine in facts.built_on
]
"""Such as `linux-x86_64`: what the farm builds for."""
PlatformName = Annotated[
    str,
    word_of("platform", lambda: [*PLATFORMS]),
    Field(json_schema_extra=lambda to: to.update(enum=[*PLATFORMS])),
]
Machine = Annotated[
    str,
    word_of("machine", lambda: MACHINES),
    Field(json_schema_extra=lambda to: to.update(enum=[*MACHINES])),
]
PlatformMachine = Annotated[
    str,
    word_of("platform and machine", lambda: PLATFORM_MACHINES),
    Field(json_schema_extra=lambda to: to.update(enum=PLATFORM_MACHINES)),
]
