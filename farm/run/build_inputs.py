"""Inputs of a build beside its plan, for the provenance of its wheel.

Whoever runs a build knows it: the journal of this machine, or the farm on a runner, whose `farm build` leaves it beside
the wheel (`built/inputs.json`). A container cannot say it: the file is written after its output was taken.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from farm.base.errors import BuildFailedError, UsageError
from farm.base.yamlfile import Model, load
from farm.run.backends import IMAGE, engine_kind
from farm.run.context import RunContext
from farm.run.journal import EventKind

FILE = "inputs.json"
MAX_BYTES = 1 << 20
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,300}$")]
Uri = Annotated[str, Field(pattern=r"^git\+https?://[A-Za-z0-9_./@:-]{1,300}$")]


class BuildInputs(Model):
    """The inputs of one build.

    Attributes:
        image: The id of the image that it ran in.
        wheels: The published wheels that it was built against: sha256 by name.
        cache: The compiler cache of the build's own machine; what was in it is not known by digest.
        actions: The workflow that it ran in, and the actions of that workflow: commits by repository.
    """

    image: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    wheels: dict[Name, Sha256] = {}
    cache: Annotated[str, Field(max_length=300)] | None = None
    actions: dict[Uri, Commit] = {}


_WORKFLOW = re.compile(r"([\w.-]+/[\w.-]+)/(\.github/workflows/[\w.-]+\.ya?ml)@(\S+)")
_ACTION = re.compile(r"^[ -]*uses:\s*([\w.-]+/[\w.-]+)[\w./-]*@([0-9a-f]{40})\b", re.MULTILINE)
_OWN_ACTION = re.compile(r"^[ -]*uses:\s*[.$]/([\w./-]+)", re.MULTILINE)


def actions(environ: Mapping[str, str], checkout: Path) -> dict[str, str]:
    """The workflow of GitHub Actions that this process runs in, and its actions: commits by repository.

    The variables: https://docs.github.com/en/actions/reference/workflows-and-actions/variables. Empty elsewhere. An
    action that is not pinned by its commit is left out: which one ran cannot be known.
    """
    workflow = _WORKFLOW.fullmatch(environ.get("GITHUB_WORKFLOW_REF", ""))
    if environ.get("GITHUB_ACTIONS") != "true" or workflow is None:
        return {}
    server, (repository, file, ref) = environ.get("GITHUB_SERVER_URL", "https://github.com"), workflow.groups()
    text = _text(checkout / file)
    # `uses: ./folder` is an action of the repository itself, which may use others in turn.
    text += "".join(_text(checkout / own / "action.yml") for own in _OWN_ACTION.findall(text))
    found = {f"git+{server}/{name}": commit for name, commit in _ACTION.findall(text)}
    commit = environ.get("GITHUB_WORKFLOW_SHA", "")
    return found | ({f"git+{server}/{repository}@{ref}": commit} if re.fullmatch(r"[0-9a-f]{40}", commit) else {})


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def noted(context: RunContext, built: Path) -> BuildInputs:
    """The inputs of a run's build, which are beside its wheel afterwards.

    Raises:
        BuildFailedError: A runner left a file that is none.
    """
    file = built / FILE
    if engine_kind(context.run.request.on).traits.gathers:
        return read(file) if file.exists() else BuildInputs()
    given = context.journal.happened(context.run.id, EventKind.INPUTS)
    image = context.folder / IMAGE
    made = BuildInputs(
        image=image.read_text(encoding="utf-8") if image.exists() else None,
        wheels=given.data["wheels"] if given else {},
        cache=given.data["cache"] if given else None,
        actions=actions(os.environ, context.workspace.project),
    )
    # Beside the wheel: on a runner of GitHub's, `built` is what the controller collects and publishes from.
    file.write_text(made.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return made


def read(file: Path) -> BuildInputs:
    """The inputs that another machine's build noted.

    Raises:
        BuildFailedError: The file is none of ours.
    """
    try:
        # A runner wrote it: a link could lead to any file of this machine.
        if file.is_symlink() or file.stat().st_size > MAX_BYTES:
            raise UsageError(f"{file}: more than {MAX_BYTES >> 20} MiB")
        return load(file, BuildInputs)
    except (UsageError, OSError) as error:
        raise BuildFailedError(f"the inputs that the build noted cannot be used: {error}") from error
