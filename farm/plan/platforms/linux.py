"""Linux: gcc in a toolchain image made from Debian's packages, CUDA from Debian's packages or
NVIDIA's archives.

The image holds nothing of the variant, so that variants share it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from farm import catalog
from farm.base import text as cleaning
from farm.base.text import json_lines
from farm.catalog import redist
from farm.catalog.models import DebianRelease
from farm.plan.compat.compilers import host_gcc, newest_gcc
from farm.plan.compat.stack import Stack
from farm.plan.file import Plan, SourcePlan, ToolkitPlan
from farm.plan.platforms.base import DOCKERFILE, Files, Platform, Templates, Variables, compilers
from farm.plan.recipe import Recipe
from farm.platforms.facts import PLATFORMS

COMMON_SCRIPTS = ("apt_sections.sh", "prove_toolchain.py", "collect_libraries.py")
TOOLKIT_SCRIPTS = {
    "debian": ("install_debian_cuda.py",),
    "nvidia": ("install_toolkit.py",),
    "wheels": ("install_cuda_wheels.py", "install_debian_cuda.py"),  # the first imports the second
}
JOB_SCRIPTS = ("run_build.py", "steps.py")
PYTHON_SCRIPTS = ("install_python.py", "install_toolkit.py")  # the first imports the second
GCC_SCRIPTS = ("install_gcc.py", "install_debian_cuda.py")  # the first imports the second
PYTHON_PREFIX = "/opt/python"


class Linux(Platform):
    facts = PLATFORMS["linux"]

    def environment(self, recipe: Recipe, stack: Stack) -> Variables:
        return compilers(stack, stack.base or "of the host", *_gcc(recipe, stack))

    def packages(self, recipe: Recipe, stack: Stack) -> list[str]:
        base = catalog.debian_releases().get(stack.base or "")
        if base is not None and base.borrowed_gcc is not None:
            version = base.borrowed_gcc.beside
            return [f"gcc-{version}", f"g++-{version}", "patchelf", *recipe.apt]
        return [*_gcc(recipe, stack), *recipe.apt]

    def opens(self, recipe: Recipe, stack: Stack) -> list[str]:
        versions = {"cuda": stack.cuda, "cudnn": stack.cudnn}
        libraries = []
        for part, names in recipe.opens.items():
            if versions[part]:
                libraries += names
        return libraries

    def render(
        self, templates: Templates, plan: Plan, values: Mapping[str, Any]
    ) -> tuple[Files, Files]:
        _, job = super().render(templates, plan, values)
        scripts = {name: templates.script(name) for name in JOB_SCRIPTS}
        return _image(templates, plan), job | scripts | {"text.py": templates.module(cleaning)}

    own_init = True

    def container_command(self, _output: str, limit_s: int) -> tuple[str, ...]:
        return ("python3", "-E", "-s", "/farm/job/steps.py", str(limit_s))


PLATFORM = Linux()


def _gcc(recipe: Recipe, stack: Stack) -> tuple[str, str]:
    """The newest C and C++ compilers that base image, toolkit and recipe take."""
    version = host_gcc(stack)
    # The plan has a base image: the matrix pins one, or the Python decides.
    assert version is not None
    limit = recipe.gcc
    if limit == "cuda":
        # `cuda`: the newest gcc for the CUDA of the base image, also in a build that has no CUDA.
        limit = None
        base = catalog.debian_releases().get(stack.base or "")
        if base:
            limit = newest_gcc(base, base.cuda)
    if limit:
        version = min(version, limit)
    return f"gcc-{version}", f"g++-{version}"


def _image(templates: Templates, plan: Plan) -> Files:
    toolkit = plan.toolkit
    base = catalog.debian_releases()[str(plan.base)]
    provider = catalog.nvidia_provider()
    scripts = list(COMMON_SCRIPTS)
    files: Files = {}
    image_env: dict[str, str] = {}
    # For an engine that emulates this machine. Ubuntu has packages for ARM on other servers than
    # those for x86_64.
    native_compilers = plan.machine == "aarch64" and base.distribution == "debian"
    if native_compilers:
        scripts.append("native_compilers.sh")
    if plan.python:
        scripts += PYTHON_SCRIPTS
    if base.limits:
        scripts.append("limit_symbols.py")
    borrowed = None
    if base.borrowed_gcc is not None:
        scripts += GCC_SCRIPTS
        lender = catalog.debian_releases()[base.borrowed_gcc.release]
        borrowed = {"suite": lender.suite, "version": base.borrowed_gcc.version}
    lowest_sm = None
    if toolkit:
        scripts += TOOLKIT_SCRIPTS[toolkit.provider]
        image_env = provider.env
        if toolkit.provider == "debian":
            image_env = base.env
        # A package without CUDA code of its own may do without the compiler.
        if "nvcc" in toolkit.components:
            lowest_sm = min(catalog.toolkits()[toolkit.cuda].sm)
        # The image's digest follows from these files: two plans with the same toolkit share an
        # image.
        files["scripts/toolkit.json"] = json_lines(_manifest(plan, toolkit, base))
    values = {
        "base": plan.base,
        "toolkit": toolkit,
        "apt": plan.apt,
        "python": plan.python,
        "python_prefix": PYTHON_PREFIX,
        "python_name": plan.parsed_variant.python_version,
        "prefix": provider.prefix,
        "image_env": image_env,
        "cxx": plan.env["CXX"],
        "native_compilers": native_compilers,
        "borrowed": borrowed,
        "limits": base.limits,
        "lowest_sm": lowest_sm,
    }
    files["Dockerfile"] = templates.fill(DOCKERFILE, values)
    # Each script once: providers share some.
    for name in dict.fromkeys(scripts):
        files[f"scripts/{name}"] = templates.script(name)
    return files


def _manifest(plan: Plan, toolkit: ToolkitPlan, release: DebianRelease) -> dict[str, object]:
    """What the image's script installs of CUDA, and from where."""
    if toolkit.provider == "nvidia":
        return _nvidias_manifest(toolkit, f"{plan.platform}-{plan.machine}")
    if toolkit.provider == "wheels":
        return _manifest_of_wheels(toolkit)
    return _debians_manifest(toolkit, release)


def _nvidias_manifest(toolkit: ToolkitPlan, platform: str) -> dict[str, object]:
    provider = catalog.nvidia_provider()
    manifest = redist.install_manifest(toolkit.archives, provider.platforms[platform])
    if toolkit.wheels:
        manifest["parts"] = _parts(toolkit.wheels, dict(provider.cudnn))
    return manifest


def _manifest_of_wheels(toolkit: ToolkitPlan) -> dict[str, object]:
    layout = catalog.wheel_toolkits()[toolkit.cuda]
    prefix = catalog.nvidia_provider().prefix.strip("/")
    parts = []
    for wheel in toolkit.wheels:
        # All of the wheel's folder goes below the toolkit's prefix, as it is there.
        folder = layout.folder_in(str(wheel.package))
        parts += _parts([wheel], {"members": {f"{folder}/**": prefix}})
    return {"schema": 1, "parts": parts}


def _debians_manifest(toolkit: ToolkitPlan, release: DebianRelease) -> dict[str, object]:
    parts = []
    for name in toolkit.components:
        parts += [part.model_dump() for part in release.components[name]]
    parts += _parts(toolkit.wheels, dict(release.cudnn or {}))
    manifest: dict[str, object] = {"schema": 1, "parts": parts}
    if release.toolkit_of:
        manifest["suite"] = catalog.debian_releases()[release.toolkit_of].suite
    return manifest


def _parts(wheels: Iterable[SourcePlan], content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Wheels of which the same is taken, as entries of a manifest."""
    return [{"wheel": wheel.file, "sha256": wheel.sha256, **content} for wheel in wheels]
