"""Plans to text: the context of the toolchain image and the script that builds. Pure: the same plan, the same bytes.

`image/` holds what the image is made from and nothing of the variant, so that variants share it; `job/` holds
what one build needs beside its source. Both are meant to be read by a person.
"""

import hashlib
import json
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jinja2

from farm import catalog, patches, recipe
from farm.catalog import redist
from farm.errors import UsageError
from farm.plan import Plan, ToolkitPlan
from farm.recipe import job_digest, job_files
from farm.variant import Variant
from farm.winrender import render_windows

EPOCH = 315532800
"""1980-01-01, the first date that a zip can hold: the same wheel whenever it is built."""

COMMON_SCRIPTS = ("apt_sections.sh", "prove_toolchain.py", "collect_libraries.py", "cache_counts.py")
TOOLKIT_SCRIPT = {"debian": "install_debian_cuda.py", "nvidia": "install_toolkit.py"}


@dataclass(frozen=True)
class Rendered:
    """Relative path -> content, for the image's context and for the job; no image where the host itself builds."""

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
    if plan.platform == "linux" and plan.base not in catalog.debian_releases():
        raise UsageError(f"the catalogue has no base {plan.base!r}", hint="make the plan again")
    if plan.toolkit and plan.toolkit.cuda not in catalog.toolkits():
        raise UsageError(f"the catalogue has no CUDA {plan.toolkit.cuda}", hint="make the plan again")
    environment = _environment(templates / plan.platform)
    try:
        if plan.platform == "windows":
            image, job = render_windows(environment, templates / "scripts", plan, _values(plan))
            job |= {"plan.json": plan.to_json()} | _patches(plan)
            return Rendered(image=image, job=dict(sorted(job.items())))
        image = _image(environment, templates, plan, plan.base) if plan.base else {}
        return Rendered(image=image, job=_job(environment, plan) | _recipe_files(plan))
    except jinja2.TemplateError as error:
        raise UsageError(f"{templates}: {error}") from error
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error


@lru_cache(maxsize=8)
def _environment(folder: Path) -> jinja2.Environment:
    """The templates of a folder; one that changes on disk is read again."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Dockerfiles and shell, quoted by the filter `quote`
    )
    environment.filters["quote"] = shlex.quote
    return environment


@lru_cache(maxsize=64)
def _text(path: Path, modified_ns: int) -> str:  # noqa: ARG001 a file that changes is read again
    return path.read_text(encoding="utf-8")


def _image(environment: jinja2.Environment, templates: Path, plan: Plan, base_name: str) -> dict[str, str]:
    toolkit = plan.toolkit
    base = catalog.debian_releases()[base_name]
    cuda = catalog.toolkits()[toolkit.cuda] if toolkit else None
    provider = catalog.nvidia_provider()
    scripts = list(COMMON_SCRIPTS)
    files: dict[str, str] = {}
    image_env: dict[str, str] = {}
    if toolkit:
        scripts.append(TOOLKIT_SCRIPT[toolkit.provider])
        image_env = base.env if toolkit.provider == "debian" else provider.env
        manifest = _debian_manifest(toolkit, base_name) if toolkit.provider == "debian" else _nvidia_manifest(plan)
        files["scripts/toolkit.json"] = json.dumps(manifest, indent=2) + "\n"
    files["Dockerfile"] = environment.get_template("Dockerfile.j2").render(
        base=base_name,
        toolkit=toolkit,
        apt=plan.apt,
        prefix=provider.prefix,
        image_env=image_env,
        cxx=plan.env["CXX"],
        lowest_sm=min(cuda.sm) if cuda else None,
    )
    for name in scripts:
        path = templates / "scripts" / name
        files[f"scripts/{name}"] = _text(path, path.stat().st_mtime_ns)
    return dict(sorted(files.items()))


def _job(environment: jinja2.Environment, plan: Plan) -> dict[str, str]:
    values = _values(plan)
    files = {"plan.json": plan.to_json()} | _patches(plan)
    for name in environment.list_templates():
        if name != "Dockerfile.j2":
            files[name.removesuffix(".j2")] = environment.get_template(name).render(values)
    return dict(sorted(files.items()))


def _recipe_files(plan: Plan) -> dict[str, str]:
    """What the recipe brings beside the source.

    Raises:
        UsageError: It is not what the plan was made from.
    """
    if job_digest(plan.recipe) != plan.job_files:
        raise UsageError(f"recipe {plan.recipe} changed since the plan was made", hint="make the plan again")
    return {f"recipe/{name}": path.read_text(encoding="utf-8") for name, path in job_files(plan.recipe).items()}


def _values(plan: Plan) -> dict[str, object]:
    variant = Variant.parse(plan.variant)
    values = {"digest": plan.digest, "epoch": EPOCH, "cpu": variant.cpu, "python": variant.python_version}
    own = {"patched": bool(recipe.patches(plan.package)), "prepare": "prepare.sh" in job_files(plan.recipe)}
    return {**dict(plan), **values, **own}


def _patches(plan: Plan) -> dict[str, str]:
    """The declared changes and what applies them, where the package has any."""
    found = recipe.patches(plan.package)
    if not found:
        return {}
    code = Path(patches.__file__)
    return {"patches.json": json.dumps(found, indent=2) + "\n", "patches.py": _text(code, code.stat().st_mtime_ns)}


def _debian_manifest(toolkit: ToolkitPlan, base: str) -> dict[str, object]:
    known = catalog.debian_releases()[base].components
    missing = [name for name in toolkit.components if name not in known]
    if missing:
        raise UsageError(
            f"the debian toolkit of {base} has no component {', '.join(missing)}",
            hint=f"known: {', '.join(known)}; or use --toolkit nvidia",
        )
    parts = [part.model_dump() for name in toolkit.components for part in known[name]]
    return {"schema": 1, "parts": parts + _wheel_parts(toolkit, base)}


def _wheel_parts(toolkit: ToolkitPlan, base: str) -> list[dict[str, object]]:
    if not toolkit.wheels:
        return []
    rule = catalog.debian_releases()[base].cudnn
    if rule is None:
        raise UsageError(f"the debian toolkit of {base} takes nothing from wheels", hint="make the plan again")
    return [{"wheel": wheel.file, "sha256": wheel.sha256} | dict(rule) for wheel in toolkit.wheels]


def _nvidia_manifest(plan: Plan) -> dict[str, object]:
    assert plan.toolkit
    archives = [redist.Archive(**dict(entry)) for entry in plan.toolkit.archives]
    return redist.install_manifest(archives, catalog.nvidia_provider().platforms[f"{plan.platform}-{plan.machine}"])
