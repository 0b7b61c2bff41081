"""Windows plans to text: the image's context, and the job that a host or a container runs. Pure.

Batch files have CRLF line ends: cmd misses labels in files without.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2

from farm import catalog
from farm.catalog import redist
from farm.catalog.wintools import windows_tools
from farm.errors import UsageError
from farm.planfile import Plan
from farm.variant import Variant

JOB_TEMPLATES = ("build.cmd", "container.cmd", "prepare.cmd", "report.cmd", "tiers.cmake")
IMAGE_TEMPLATES = ("install.cmd", "prove.cmd", "prepare.cmd")
SCRIPTS = ("install_toolkit.py", "fetch_tools.py")


def cmd_text(value: str) -> str:
    """A value between quotes in a batch file, delayed expansion off: only the percent sign needs care.

    Raises:
        UsageError: It holds what no batch file can: a quote, or a character that is not ASCII.
    """
    if '"' in value or not value.isascii() or not value.isprintable():
        raise UsageError(f"{value!r} cannot stand in a batch file", hint="quotes and letters beyond ASCII cannot")
    return value.replace("%", "%%")


def render_windows(
    environment: jinja2.Environment, scripts: Path, plan: Plan, values: dict[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
    """The files of the image's context and of the job.

    Raises:
        UsageError: The plan's source is no git repository, or a value cannot stand in a batch file.
    """
    if plan.windows is None or plan.source.kind != "git":
        raise UsageError(f"{plan.package} has no repository to build from on Windows", hint="--platform linux")
    environment.filters["cmd"] = cmd_text
    tools = windows_tools()
    requirements = "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in plan.windows.wheels)
    cuda = catalog.toolkits()[plan.toolkit.cuda] if plan.toolkit else None
    hosts = sorted(((int(build), host.tags) for build, host in catalog.windows().hosts.items()), reverse=True)
    values = values | {
        "cuda_folder": plan.env["CUDA_HOME"].replace("/", "\\") if plan.toolkit else "",
        "requirements_digest": hashlib.sha256(requirements.encode()).hexdigest()[:12],
        "build_tools": tools.visual_studio[plan.windows.visual_studio],
        "python_download": tools.python[Variant.parse(plan.variant).python],
        "git": tools.git,
        "lowest_sm": min(cuda.sm) if cuda else None,
        "hosts": [{"build": build, "tags": tags} for build, tags in hosts],
        "images": {tag: core.image for tag, core in catalog.windows().servercore.items()},
    }

    def made(name: str) -> str:
        text = environment.get_template(f"{name}.j2").render(values)
        return text.replace("\n", "\r\n") if name.endswith(".cmd") else text

    common = {name: (scripts / name).read_text(encoding="utf-8") for name in SCRIPTS}
    common["requirements.txt"] = requirements
    common["tools.json"] = json.dumps([tool.model_dump() for tool in plan.windows.tools], indent=2) + "\n"
    if plan.toolkit:
        archives = [redist.Archive(**dict(entry)) for entry in plan.toolkit.archives]
        manifest = redist.install_manifest(archives, catalog.nvidia_provider().platforms[f"windows-{plan.machine}"])
        common["toolkit.json"] = json.dumps(manifest, indent=2) + "\n"
    image = {"Dockerfile": made("Dockerfile")}
    image |= {f"scripts/{name}": made(name) for name in IMAGE_TEMPLATES}
    image |= {f"scripts/{name}": text for name, text in common.items()}
    whole = json.dumps(image, sort_keys=True)
    values["image_digest"] = hashlib.sha256(whole.encode()).hexdigest()
    image["image.cmd"] = made("image.cmd")
    job = common | {name: made(name) for name in JOB_TEMPLATES}
    job["count_jobs.py"] = (scripts / "count_jobs.py").read_text(encoding="utf-8")
    return dict(sorted(image.items())), job
