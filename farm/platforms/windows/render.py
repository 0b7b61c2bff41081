"""Windows plans to text: the image's context, and the job that a host or a container runs. Pure.

Batch files have CRLF line ends: cmd misses labels in files without.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from farm import catalog
from farm.base.errors import UsageError
from farm.base.hashes import read_tree
from farm.catalog import redist
from farm.plan.file import Plan, ToolkitPlan, WindowsPlan
from farm.plan.inputs import source_folder
from farm.plan.recipe import recipe
from farm.platforms.base import Files
from farm.platforms.templates import Templates
from farm.platforms.windows.tools import windows_tools

JOB_TEMPLATES = ("build.cmd", "container.cmd", "prepare.cmd", "report.cmd", "tiers.cmake")
IMAGE_TEMPLATES = ("get.cmd", "visual_studio.cmd", "install.cmd", "prove.cmd", "prepare.cmd")
SCRIPTS = ("install_toolkit.py", "fetch_tools.py", "logged.py")
TOOLKIT_SCRIPTS = ("import_libraries.py",)
JOB_SCRIPTS = ("check_machine.py", "count_jobs.py", "long_paths.py", "report.py")


def cmd_text(value: str) -> str:
    """A value between quotes in a batch file, delayed expansion off: only the percent sign needs care.

    Raises:
        UsageError: It holds what no batch file can: a quote, or a character that is not ASCII.
    """
    # A batch file has no escape for a quote inside quotes, and is read in the machine's own code page.
    if '"' in value or not value.isascii() or not value.isprintable():
        raise UsageError(f"{value!r} cannot be in a batch file", hint="quotes and letters beyond ASCII cannot")
    return value.replace("%", "%%")


def render(templates: Templates, plan: Plan, values: Mapping[str, Any]) -> tuple[Files, Files]:
    """The files of the image's context and of the job.

    Raises:
        UsageError: The plan's source is neither a git repository nor beside the recipe, or a value cannot be in a
            batch file.
    """
    if plan.windows is None or plan.source.kind not in ("git", "path"):
        raise UsageError(f"{plan.package} has no repository to build from on Windows", hint="--platform linux")
    templates.add_filter("cmd", cmd_text)
    common = _common(templates, plan, plan.windows)
    filled = {**values, **_values(plan, plan.windows, common)}

    def made(name: str) -> str:
        text = templates.fill(f"{name}.j2", filled)
        # cmd.exe mistakes labels and long blocks in files with bare line feeds.
        return text.replace("\n", "\r\n") if name.endswith(".cmd") else text

    image = {"Dockerfile": made("Dockerfile")}
    image |= {f"scripts/{name}": made(name) for name in IMAGE_TEMPLATES}
    image |= {f"scripts/{name}": text for name, text in common.items()}
    # Before image.cmd is made, which holds the digest itself.
    whole = json.dumps(image, sort_keys=True)
    filled["image_digest"] = hashlib.sha256(whole.encode()).hexdigest()  # of all that image.cmd builds from
    image["image.cmd"] = made("image.cmd")
    job = common | {name: made(name) for name in JOB_TEMPLATES}
    if values["archives"]:
        job["archives.txt"] = f"{values['archives']}\r\n"
        if values["archives"].startswith("http"):  # a build of an image sees no folder of the host
            image["archives.txt"] = job["archives.txt"]
    return image, job | {name: templates.script(name) for name in JOB_SCRIPTS} | _source(plan)


def _source(plan: Plan) -> Files:
    """The files of a source that is beside the recipe: no network is needed for them.

    Raises:
        UsageError: The source is not what the plan was made from, or holds a file that is not text, or a link.
    """
    if plan.source.kind != "path":
        return {}
    folder = source_folder(plan)
    tree = read_tree(folder)
    if link := next((path for path in tree.links if path.is_dir()), None):
        raise UsageError(
            f"{link} is a link to a folder: a build on Windows gets files alone", hint="put a copy in its place"
        )
    try:
        return {
            f"source/{path.relative_to(folder).as_posix()}": path.read_text(encoding="utf-8") for path in tree.files
        }
    except UnicodeDecodeError as error:
        raise UsageError(f"{folder}: a file is not UTF-8 text", hint="put the source into a git repository") from error


def _common(templates: Templates, plan: Plan, windows: WindowsPlan) -> Files:
    """Files of both the image and a host's build: scripts, and lists of files to fetch."""
    files = {name: templates.script(name) for name in SCRIPTS}
    # With a hash each, pip refuses what is not pinned here.
    files["requirements.txt"] = "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in windows.wheels)
    files["tools.json"] = json.dumps([tool.model_dump() for tool in windows.tools], indent=2) + "\n"
    if plan.toolkit and plan.toolkit.wheels:
        files |= {name: templates.script(name) for name in TOOLKIT_SCRIPTS}
        files["toolkit.txt"] = "".join(
            f"{wheel.package}=={str(wheel.file).split('-')[1]} --hash=sha256:{wheel.sha256}\n"
            for wheel in plan.toolkit.wheels
        )
    if plan.toolkit and plan.toolkit.archives:
        nvidias_name = catalog.nvidia_provider().platforms[f"{plan.platform}-{plan.machine}"]
        files["toolkit.json"] = (
            json.dumps(redist.install_manifest(plan.toolkit.archives, nvidias_name), indent=2) + "\n"
        )
    return files


def _toolkit_folders(toolkit: ToolkitPlan | None) -> list[str]:
    """The folders of NVIDIA's wheels that make up the toolkit, as cmd writes them.

    Raises:
        UsageError: The catalogue has no such toolkit.
    """
    if toolkit is None or not toolkit.wheels:
        return []
    known = catalog.wheel_toolkits().get(toolkit.cuda)
    if known is None:
        raise UsageError(
            f"the catalogue has no wheels of CUDA {toolkit.cuda} for Windows",
            hint="choose a cuDNN that NVIDIA has archives of, or create the plan again",
        )
    folders = (known.folder_in(str(wheel.package)) for wheel in toolkit.wheels)
    return [folder.replace("/", "\\") for folder in dict.fromkeys(folders)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _values(plan: Plan, windows: WindowsPlan, files: Files) -> dict[str, Any]:
    """Values that the templates of Windows alone name."""
    tools = windows_tools()
    cuda = catalog.toolkits()[plan.toolkit.cuda] if plan.toolkit else None
    hosts = sorted(((int(build), host.tags) for build, host in catalog.windows().hosts.items()), reverse=True)
    titles = {name: one.title for name, one in catalog.features().items()}
    return {
        "disk_gb": recipe(plan.recipe).disk_gb,
        "cpu_minutes": round(tools.cpu_hours.get(plan.package, 0) * 60),
        "lacks": ", ".join(titles[name] for name in plan.without if name in titles),
        "cuda_folder": plan.env["CUDA_HOME"].replace("/", "\\") if plan.toolkit else "",
        "requirements_digest": _digest(files["requirements.txt"]),
        "toolkit_folders": _toolkit_folders(plan.toolkit),
        "toolkit_digest": _digest(files.get("toolkit.txt", "")),
        "build_tools": tools.visual_studio[windows.visual_studio],
        "python_download": tools.python[plan.parsed_variant.python],
        "git": tools.git,
        "lowest_sm": min(cuda.sm) if cuda else None,
        "hosts": [{"build": build, "tags": tags} for build, tags in hosts],
        "images": {tag: core.image for tag, core in catalog.windows().servercore.items()},
    }
