"""From what was asked for to a plan: `resolve` goes the whole way, `check_request` stops before the
plan is made.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from farm import catalog
from farm.base.errors import UsageError
from farm.base.yamlfile import first_fault, is_packaged, where
from farm.plan import materials
from farm.plan.build_variables import (
    LEFT_OUT,
    Setting,
    environment,
    feature_settings,
    filled,
    missing_features,
    needs,
    placeholders,
)
from farm.plan.channel_choice import best_channel
from farm.plan.compat.stack import Stack, effects
from farm.plan.file import Plan, SourcePlan
from farm.plan.options import OPTIONS, Choice, Value
from farm.plan.platforms.base import platform
from farm.plan.recipe import folder as recipe_folder
from farm.plan.recipe import job_digest, job_files
from farm.plan.request import BuildRequest, ResolvedRequest, Verdict
from farm.policy.rules import Policy


def resolve(project: Path, request: BuildRequest) -> Plan:
    """Resolve a request into a plan; `project` is the folder that holds `ci/`.

    Raises UsageError: a name is unknown or a configuration file is wrong; NotBuildableError: the
    combination cannot be built; every reason is in the message.
    """
    result = best_channel(project, request)
    result.verdict.require_buildable()
    resolved = result.resolved
    try:
        return _plan(resolved)
    except ValidationError as error:  # what a recipe may say, and no plan may hold
        first = error.errors()[0]
        line = where(recipe_folder(resolved.pins.recipe) / "recipe.yaml", *first["loc"])
        raise UsageError(
            f"{line}: {first_fault(error)}", hint="docs/tutorials/your-package.md has the keys"
        ) from error


def check_request(
    project: Path, request: BuildRequest, fields: Mapping[str, Any] | None = None
) -> Verdict:
    """The reasons against building what was asked for; `fields` are further fields of the stack,
    such as a driver.
    """
    return best_channel(project, request, fields).verdict


def _plan(resolved: ResolvedRequest) -> Plan:
    recipe = resolved.recipe
    stack = resolved.stack
    pins = resolved.pins
    _check_compiler(resolved)
    values = placeholders(resolved)
    system = platform(stack.platform)
    env = environment(resolved, values)
    features = feature_settings(resolved)
    present = [name for name, setting in features.items() if setting.on]
    files = job_files(pins.recipe)
    materials.check_changes(pins.recipe, recipe, files, stack.platform)
    patch_files = [name for name in files if name.startswith("patches/")]
    return Plan(
        package=recipe.package,
        version=values["version"],
        variant=str(stack.variant),
        platform=stack.platform,
        machine=stack.variant.machine,
        channel=resolved.channel.name,
        options=_options(resolved, features),
        base=pins.base,
        python=materials.python_plan(stack),
        toolkit=materials.toolkit(recipe, stack),
        apt=_packages(resolved, patched=bool(patch_files)),
        env={name: str(choice.value) for name, choice in sorted(env.items())},
        recipe=pins.recipe,
        source=materials.source(pins.recipe, recipe, stack.torch),
        subdirectory=recipe.subdirectory,
        parts=materials.parts(recipe, stack, pins.base, present),
        patch_files=patch_files,
        job_files=job_digest(files),
        tiers_off=catalog.cpu_levels()[stack.variant.cpu].without,
        cmake=_cmake_variables(stack),
        memory_per_job_gb=recipe.memory_per_job_gb,
        timeout_minutes=recipe.timeout_minutes,
        needs=needs(resolved),
        build_requires=_build_requires(resolved),
        vendor_into=recipe.vendor_into,
        repair=recipe.repair_on(stack.platform),
        exclude=recipe.exclude,
        opens=system.opens(recipe, stack),
        library_wheels=materials.library_wheels(recipe, stack, resolved.value("cuda_libraries")),
        features=present,
        without=missing_features(resolved, features),
        verify=_policy(resolved, values),
        requires=_requirements(resolved, values),
        windows=system.details(recipe, stack),
        origins=_origins(resolved, env),
    )


def _check_compiler(resolved: ResolvedRequest) -> None:
    """Raise a UsageError where a recipe has CUDA code and nothing that compiles it."""
    recipe = resolved.recipe
    if not resolved.stack.cuda or not recipe.device_code or "nvcc" in recipe.components:
        return
    line = where(recipe_folder(resolved.pins.recipe) / "recipe.yaml", "components")
    raise UsageError(
        f"{line}: components: nothing compiles CUDA code for {resolved.stack.variant}: nvcc is "
        "missing",
        hint="add nvcc, headers and cudart; or, for a package without CUDA code of its own, "
        "`device_code: false`",
    )


def _options(resolved: ResolvedRequest, features: Mapping[str, Setting]) -> dict[str, Value]:
    """The value of each option, what is left out in one form.

    Order, other names and what the build lacks anyway make no other plan.
    """
    left_out = []
    for name, setting in features.items():
        if setting.reason.startswith(LEFT_OUT):
            left_out.append(name)
    options = {name: choice.value for name, choice in resolved.chosen.items()}
    options["without"] = ",".join(sorted(left_out)) or None
    options["with"] = None
    return options


def _packages(resolved: ResolvedRequest, *, patched: bool) -> list[str]:
    """The Debian packages of the build, sorted, like every list of a plan: the digest must not
    depend on the order in which parts were added.
    """
    stack = resolved.stack
    system = platform(stack.platform)
    packages = set(materials.debian_packages(system.packages(resolved.recipe, stack), stack))
    if system.facts.in_images:
        for option in OPTIONS.values():
            packages.update(option.packages(resolved.value(option.name)))
        if patched:
            packages.add("patch")
    if stack.toolkit == "nvidia":
        packages.add("ca-certificates")  # its archives come over https
    return sorted(packages)


def _cmake_variables(stack: Stack) -> dict[str, str]:
    variables: dict[str, str] = {}
    for word in effects(stack).values():
        variables.update(word.cmake)
    return variables


def _requirements(resolved: ResolvedRequest, values: Mapping[str, str]) -> list[str]:
    """The requirements of METADATA. Raises UsageError: one is not a valid requirement."""
    file = recipe_folder(resolved.pins.recipe) / "recipe.yaml"
    requirements = []
    for index, text in enumerate(resolved.recipe.requires):
        requirements.append(filled(text, values, file, "requires", index))
    # Golden plans hold what ours say; what others write is checked each time.
    if not requirements or is_packaged(file):
        return requirements
    from packaging.requirements import InvalidRequirement  # noqa: PLC0415 slow to import

    from farm.base.requirement import read_requirement  # noqa: PLC0415 slow to import

    for index, text in enumerate(requirements):
        try:
            read_requirement(text)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"{where(file, 'requires', index)}: requires.{index}: {text!r}: {reason}"
            ) from error
    return requirements


def _origins(resolved: ResolvedRequest, env: Mapping[str, Choice]) -> dict[str, str]:
    origins = {"channel": resolved.channel_origin}
    for name, choice in resolved.chosen.items():
        origins[name] = choice.origin
    if resolved.stack.standalone is not None:
        base = catalog.debian_releases()[str(resolved.pins.base)]
        python = base.python
        if base.outdated:
            python = f"an outdated {base.python}"
        origins["python"] = f"standalone: {resolved.pins.base} has {python}"
    for name, choice in env.items():
        origins[f"env.{name}"] = choice.origin
    return origins


def _build_requires(resolved: ResolvedRequest) -> list[SourcePlan]:
    """Wheels that a standalone Python needs for the build and PyTorch's own, then those of the
    recipe beside them.
    """
    recipe = resolved.recipe
    stack = resolved.stack
    wheels = materials.standalone_wheels(stack)
    wheels += materials.official_torch(resolved.pins.official, recipe, stack)
    packages = {wheel.package for wheel in wheels}
    if "torch" in recipe.needs and "torch" not in packages:
        wheels += materials.nccl_of_torch(resolved.channel.text.recipe_of("torch"), stack)
        packages = {wheel.package for wheel in wheels}
    name = resolved.pins.recipe
    for wheel in materials.build_requires(name, recipe, stack, resolved.pins.base):
        if wheel.package not in packages:
            wheels.append(wheel)
    return wheels


def _policy(resolved: ResolvedRequest, values: Mapping[str, str]) -> Policy:
    """The policy of verify: the recipe's rules, those that the channel names in their place, and
    the variant.
    """
    recipe = resolved.recipe
    variant = resolved.stack.variant
    rules = recipe.verify.model_dump()
    if resolved.pins.verify:
        rules |= resolved.pins.verify.model_dump(exclude_unset=True)
    sms = sorted(variant.sms) if recipe.device_code else []
    left_out: list[str] = []
    for tier in catalog.cpu_levels()[variant.cpu].without:
        left_out += recipe.tiers.get(tier, ())
    numpy = None
    if rules["numpy"] and values["numpy_end"]:
        numpy = f"<{values['numpy_end']}"
    # The variant's values come last: no recipe and no channel may loosen them.
    rules |= {
        "name": recipe.package,
        "version": values["version"],
        "python": "cp" + variant.python.removeprefix("py"),
        "platform": f"{resolved.stack.platform}_{variant.machine}",
        "sass": sms,
        "ptx": sms[-1:] if resolved.stack.ptx else [],
        "cpu": variant.cpu,
        "exclude": recipe.exclude,
        "left_out": left_out,
        "numpy": numpy,
    }
    return Policy(**rules)
