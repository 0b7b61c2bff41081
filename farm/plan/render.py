"""Plans to text: the context of the toolchain image and the script that builds. Pure: the same
plan, the same bytes.

`image/` holds what the image is made from and nothing of the variant, so that variants share it;
`job/` holds what one build needs beside its source. Both are meant to be read by a person. What
differs between platforms is `render` of `farm.platforms`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PureWindowsPath

import jinja2

from farm import catalog
from farm.base import outputs, resources
from farm.base.errors import UsageError, unreadable
from farm.plan import recipe
from farm.plan.file import Plan
from farm.plan.platforms.base import Templates, platform
from farm.plan.recipe import job_digest, job_files
from farm.plan.settings import load_settings

EPOCH = 315532800
"""1980-01-01, the first date that a zip can hold: the same wheel whenever it is built."""


@dataclass(frozen=True)
class Rendered:
    """Relative path -> content, for the image's context and for the job; no image where the host
    itself builds.
    """

    image: dict[str, str]
    job: dict[str, str]

    @property
    def image_digest(self) -> str:
        """Sha256 of the image's context."""
        return hashlib.sha256(json.dumps(self.image, sort_keys=True).encode()).hexdigest()

    def write(self, dest: Path) -> list[Path]:
        """Write `image/` and `job/`, all or nothing; returns the files. Raises UsageError: `dest`
        is no folder.
        """
        files = {}
        for folder, texts in (("image", self.image), ("job", self.job)):
            for name, text in texts.items():
                # A recipe's patch may be in another encoding: its bytes come back as they were.
                files[Path(folder, name)] = text.encode("utf-8", "surrogateescape")
        outputs.write(dest, files)
        return [dest / file for file in files]


def render(project: Path, plan: Plan) -> Rendered:
    """Render with the farm's templates, or the project's own `dockerfiles/`. Raises UsageError: one
    is wrong.
    """
    # A plan file of another version of the farm may ask for what the catalogue of this one has not.
    toolkits: Mapping[str, object] = catalog.toolkits()
    if plan.toolkit and plan.toolkit.provider == "wheels":
        toolkits = catalog.wheel_toolkits()
    for name, table in (
        (plan.base, catalog.debian_releases()),
        (plan.toolkit and plan.toolkit.cuda, toolkits),
    ):
        if name is not None and name not in table:
            raise UsageError(f"the catalogue has no {name!r}", hint="create the plan again")
    recipe.use_project(project)
    folder = resources.path(project, f"dockerfiles/{plan.platform}")
    templates = _templates(folder, resources.path(project, "dockerfiles/scripts"))
    files = job_files(plan.recipe)
    values = _values(plan) | {
        "digest": plan.digest,
        "prepare": "prepare.sh" in files,
        "archives": _archives(project),
    }
    try:
        image, job = platform(plan.platform).render(templates, plan, values)
    except jinja2.TemplateError as error:
        raise UsageError(f"{folder}: {error}") from error
    except OSError as error:
        raise unreadable(error.filename, error) from error
    # The plan goes along: whoever looks into a job's folder, or an engine that sends plans, finds
    # it there.
    job |= {"plan.json": plan.to_json()} | _recipe_files(plan, files)
    return Rendered(image=dict(sorted(image.items())), job=dict(sorted(job.items())))


_templates = lru_cache(maxsize=8)(Templates)
"""Templates stay compiled from one plan to the next; one that changes on disk is read again."""


def _values(plan: Plan) -> dict[str, object]:
    """Values of templates: the fields of the plan, and what follows from them."""
    values = {
        "epoch": EPOCH,
        "cpu": plan.parsed_variant.cpu,
        "python": plan.parsed_variant.python_version,
    }
    return {
        **dict(plan),
        **values,
        "installs": plan.installs,
        "never_vendored": plan.never_vendored,
    }


def _archives(project: Path) -> str:
    """The folder or mirror of the user's own with the archives that a build downloads; empty:
    none.
    """
    place = load_settings(project).archives or ""
    # A path with a drive is one of the Windows machine that builds, not of this project.
    if not place or place.startswith(("http://", "https://")) or PureWindowsPath(place).drive:
        return place
    return str(project / place)


def _recipe_files(plan: Plan, files: Mapping[str, bytes]) -> dict[str, str]:
    """The recipe's files for the build, as text. Raises UsageError: it is not what the plan was
    made from.
    """
    # The plan holds their digest, not the files: they are read from the recipe as it is now.
    if job_digest(files) != plan.job_files:
        raise UsageError(
            f"recipe {plan.recipe} changed since the plan was made", hint="create the plan again"
        )
    return {f"recipe/{name}": _text(content) for name, content in files.items()}


def _text(content: bytes) -> str:
    """A file as text, what is not UTF-8 as `surrogateescape` has it; without what a checkout on
    Windows adds.

    Such a checkout ends every line with CRLF. A patch of a file with CRLF has LF in its own lines
    (`---`, `@@`), and must stay so: `patch` refuses other line ends than the file's.
    """
    text = content.decode(errors="surrogateescape")
    if text.count("\n") == text.count("\r\n"):
        return text.replace("\r\n", "\n")
    return text
