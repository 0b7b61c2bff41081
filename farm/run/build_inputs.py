"""The record of what a build had beside its plan, for the provenance.

Whoever runs a build knows its inputs: the journal of this machine, or the farm on a runner, whose
`farm build` leaves `built/inputs.json` beside the wheel. A container cannot say it: the file is
written after its output was taken.
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from farm.base.errors import BuildFailedError, UsageError
from farm.base.yamlfile import Model, load

INPUTS_FILE = "inputs.json"
MAX_INPUTS = 1 << 20
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,300}$")]


class BuildInputs(Model):
    """The inputs of one build: its image, the sha256 of wheels that it was built against, the
    compiler cache's name.
    """

    image: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    wheels: dict[Name, Sha256] = {}
    cache: Annotated[str, Field(max_length=300)] | None = None


def refuse_notes(output: Path) -> None:
    """Refuse a build's output with something in the place of the controller's own notes.

    Raises:
        BuildFailedError: The build left it.
    """
    file = output / INPUTS_FILE
    if os.path.lexists(file):
        raise BuildFailedError(
            f"the build left {INPUTS_FILE} in its output, where the farm notes its inputs",
            hint="a build writes below wheel/ and lib/ alone",
        )


def read_inputs(file: Path) -> BuildInputs:
    """The inputs that another machine's build noted; BuildFailedError: the file is none of ours."""
    try:
        # A runner wrote it: a link could lead to any file of this machine.
        if file.is_symlink() or file.stat().st_size > MAX_INPUTS:
            raise UsageError(f"{file}: more than {MAX_INPUTS >> 20} MiB")
        return load(file, BuildInputs)
    except (UsageError, OSError) as error:
        raise BuildFailedError(
            f"the inputs that the build noted cannot be used: {error}"
        ) from error
