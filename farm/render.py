"""Plans to text: the context of the toolchain image and the script that builds. Pure: the same plan, the same bytes.

`image/` holds what the image is made from and nothing of the variant, so that variants share it; `job/` holds
what one build needs beside its source. Both are meant to be read by a person.
"""

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import jinja2

from farm import catalog
from farm.catalog import redist
from farm.errors import UsageError
from farm.plan import Plan
from farm.variant import Variant

EPOCH = 315532800
"""1980-01-01, the first date that a zip can hold: the same wheel whenever it is built."""

COMMON_SCRIPTS = ("apt_sections.sh", "prove_toolchain.py", "collect_libraries.py")
TOOLKIT_SCRIPT = {"debian": "install_debian_cuda.py", "nvidia": "install_toolkit.py"}


@dataclass(frozen=True)
class Rendered:
    """Relative path -> content, for the image's context and for the job."""

    image: dict[str, str]
    job: dict[str, str]

    @property
    def image_digest(self) -> str:
        """Sha256 of the image's context."""
        text = json.dumps(self.image, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def write(self, dest: Path) -> list[Path]:
        """Write `image/` and `job/` under `dest`; returns the files."""
        written = []
        for folder, files in (("image", self.image), ("job", self.job)):
            for name, text in files.items():
                path = dest / folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
                written.append(path)
        return written


def render(project: Path, plan: Plan) -> Rendered:
    """Render a plan with the templates of `project`/dockerfiles.

    Raises:
        UsageError: There is no template for the plan's platform, or a template is wrong.
    """
    templates = project / "dockerfiles"
    if plan.platform != "linux":
        raise UsageError(f"there are no templates for {plan.platform} yet", hint="--platform linux")
    if plan.base not in catalog.debian_releases():
        raise UsageError(f"the catalogue has no base {plan.base!r}", hint="make the plan again")
    if plan.toolkit and plan.toolkit.cuda not in catalog.toolkits():
        raise UsageError(f"the catalogue has no CUDA {plan.toolkit.cuda}", hint="make the plan again")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates / "linux"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Dockerfiles and shell, quoted by the filter `quote`
    )
    environment.filters["quote"] = shlex.quote
    try:
        return Rendered(image=_image(environment, templates, plan), job=_job(environment, plan))
    except jinja2.TemplateError as error:
        raise UsageError(f"{templates}: {error}") from error
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _image(environment: jinja2.Environment, templates: Path, plan: Plan) -> dict[str, str]:
    toolkit = plan.toolkit
    base = catalog.debian_releases()[plan.base]
    cuda = catalog.toolkits()[toolkit.cuda] if toolkit else None
    provider = catalog.nvidia_provider()
    scripts = list(COMMON_SCRIPTS)
    files: dict[str, str] = {}
    image_env: dict[str, str] = {}
    if toolkit:
        scripts.append(TOOLKIT_SCRIPT[toolkit.provider])
        image_env = base.env if toolkit.provider == "debian" else provider.env
        manifest = _debian_manifest(plan) if toolkit.provider == "debian" else _nvidia_manifest(plan)
        files["scripts/toolkit.json"] = json.dumps(manifest, indent=2) + "\n"
    files["Dockerfile"] = environment.get_template("Dockerfile.j2").render(
        base=plan.base,
        toolkit=toolkit,
        apt=plan.apt,
        prefix=provider.prefix,
        image_env=image_env,
        cxx=f"g++-{base.gcc}",
        lowest_sm=min(cuda.sm) if cuda else None,
    )
    for name in scripts:
        files[f"scripts/{name}"] = (templates / "scripts" / name).read_text(encoding="utf-8")
    return dict(sorted(files.items()))


def _job(environment: jinja2.Environment, plan: Plan) -> dict[str, str]:
    values = {**plan.model_dump(), "digest": plan.digest, "epoch": EPOCH, "cpu": Variant.parse(plan.variant).cpu}
    return {
        "build.sh": environment.get_template("build.sh.j2").render(values),
        "plan.json": plan.to_json(),
        "tiers.cmake": environment.get_template("tiers.cmake.j2").render(values),
    }


def _debian_manifest(plan: Plan) -> dict[str, object]:
    assert plan.toolkit
    known = catalog.debian_releases()[plan.base].components
    missing = [name for name in plan.toolkit.components if name not in known]
    if missing:
        raise UsageError(
            f"the debian toolkit of {plan.base} has no component {', '.join(missing)}",
            hint=f"known: {', '.join(known)}; or use --toolkit nvidia",
        )
    parts = [part.model_dump() for name in plan.toolkit.components for part in known[name]]
    return {"schema": 1, "parts": parts}


def _nvidia_manifest(plan: Plan) -> dict[str, object]:
    assert plan.toolkit
    archives = [redist.Archive(**entry.model_dump()) for entry in plan.toolkit.archives]
    return redist.install_manifest(archives, "linux-x86_64")
