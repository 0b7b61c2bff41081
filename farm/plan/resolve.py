"""From what was asked for to a plan: `resolve` goes the whole way, `check_request` stops before the plan is
made.
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
    environment,
    feature_settings,
    filled,
    missing_features,
    needs,
    placeholders,
)
from farm.plan.channel_choice import best_channel
from farm.plan.compat.stack import effects
from farm.plan.file import Plan, SourcePlan
from farm.plan.options import OPTIONS, Choice
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
    """The reasons against building what was asked for; `fields` are further fields of the stack, such as
    a driver.
    """
    return best_channel(project, request, fields).verdict


def _plan(resolved: ResolvedRequest) -> Plan:
    recipe = resolved.recipe
    stack = resolved.stack
    pins = resolved.pins
    values = placeholders(resolved)
    system = platform(stack.platform)
    if stack.cuda and recipe.device_code and "nvcc" not in recipe.components:
        line = where(recipe_folder(pins.recipe) / "recipe.yaml", "components")
        raise UsageError(
            f"{line}: components: nothing compiles CUDA code for {stack.variant}: nvcc is missing",
            hint="add nvcc, headers and cudart; or, for a package without CUDA code of its own, "
            "`device_code: false`",
        )
    env = environment(resolved, values)
    features = feature_settings(resolved)
    present = [name for name, setting in features.items() if setting.on]
    packages = materials.debian_packages(system.packages(recipe, stack), stack)
    if system.facts.in_images:
        packages += [
            name
            for option in OPTIONS.values()
            for name in option.packages(resolved.value(option.name))
        ]
    if stack.toolkit == "nvidia":
        packages.append("ca-certificates")  # its archives come over https
    files = job_files(pins.recipe)
    materials.check_changes(pins.recipe, recipe, files, stack.platform)
    patch_files = [name for name in files if name.startswith("patches/")]
    if patch_files and system.facts.in_images:
        packages.append("patch")
    return Plan(
        package=recipe.package,
        version=values["version"],
        variant=str(stack.variant),
        platform=stack.platform,
        machine=stack.variant.machine,
        channel=resolved.channel.name,
        # In one form: order, other names and what the build lacks anyway make no other plan.
        options={name: choice.value for name, choice in resolved.chosen.items()}
        | {
            "without": ",".join(
                sorted(
                    name
                    for name, setting in features.items()
                    if setting.reason.startswith(LEFT_OUT)
                )
            )
            or None,
            "with": None,
        },
        base=pins.base,
        python=materials.python_plan(stack),
        toolkit=materials.toolkit(recipe, stack),
        # Sorted, like every list here: the digest must not depend on the order in which parts were
        # added.
        apt=sorted(set(packages)),
        env={name: str(choice.value) for name, choice in sorted(env.items())},
        recipe=pins.recipe,
        source=materials.source(pins.recipe, recipe, stack.torch),
        subdirectory=recipe.subdirectory,
        parts=materials.parts(recipe, stack, pins.base, present),
        patch_files=patch_files,
        job_files=job_digest(files),
        tiers_off=catalog.cpu_levels()[stack.variant.cpu].without,
        cmake={
            name: value for word in effects(stack).values() for name, value in word.cmake.items()
        },
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


def _requirements(resolved: ResolvedRequest, values: Mapping[str, str]) -> list[str]:
    """The requirements of METADATA. Raises UsageError: one is no requirement."""
    file = recipe_folder(resolved.pins.recipe) / "recipe.yaml"
    requirements = [
        filled(text, values, file, "requires", index)
        for index, text in enumerate(resolved.recipe.requires)
    ]
    if not requirements or is_packaged(
        file
    ):  # golden plans hold what ours say; what others write is checked each time
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
    origins |= {name: choice.origin for name, choice in resolved.chosen.items()}
    if resolved.stack.standalone is not None:
        base = catalog.debian_releases()[str(resolved.pins.base)]
        python = f"an outdated {base.python}" if base.outdated else base.python
        origins["python"] = f"standalone: {resolved.pins.base} has {python}"
    return origins | {f"env.{name}": choice.origin for name, choice in env.items()}


def _build_requires(resolved: ResolvedRequest) -> list[SourcePlan]:
    """Wheels that a standalone Python needs for the build and PyTorch's own, then those of the
    recipe beside them.
    """
    wheels = [
        *materials.standalone_wheels(resolved.stack),
        *materials.official_torch(resolved.pins.official, resolved.recipe, resolved.stack),
    ]
    if "torch" in resolved.recipe.needs and not any(wheel.package == "torch" for wheel in wheels):
        wheels += materials.nccl_of_torch(resolved.channel.text.recipe_of("torch"), resolved.stack)
    packages = {wheel.package for wheel in wheels}
    recipe_wheels = materials.build_requires(
        resolved.pins.recipe, resolved.recipe, resolved.stack, resolved.pins.base
    )
    return [*wheels, *(wheel for wheel in recipe_wheels if wheel.package not in packages)]


def _policy(resolved: ResolvedRequest, values: Mapping[str, str]) -> Policy:
    """The policy of verify: the recipe's rules, those that the channel names in their place, and
    the variant.
    """
    recipe = resolved.recipe
    pins = resolved.pins
    variant = resolved.stack.variant
    rules = recipe.verify.model_dump() | (
        pins.verify.model_dump(exclude_unset=True) if pins.verify else {}
    )
    sms = sorted(variant.sms) if recipe.device_code else []
    return Policy(
        **rules
        # The variant's values come last: no recipe and no channel may loosen them.
        | {
            "name": recipe.package,
            "version": values["version"],
            "python": "cp" + variant.python.removeprefix("py"),
            "platform": f"{resolved.stack.platform}_{variant.machine}",
            "sass": sms,
            "ptx": sms[-1:] if resolved.stack.ptx else [],
            "cpu": variant.cpu,
            "exclude": recipe.exclude,
            "left_out": [
                name
                for tier in catalog.cpu_levels()[variant.cpu].without
                for name in recipe.tiers.get(tier, ())
            ],
            "numpy": f"<{values['numpy_end']}" if rules["numpy"] and values["numpy_end"] else None,
        }
    )
