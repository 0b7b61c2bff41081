"""From what was asked for to a plan: `resolve` goes the whole way, `judge` stops before the plan is
made.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from farm import catalog
from farm.base.errors import UsageError
from farm.base.yamlfile import first_fault, is_packaged, where
from farm.plan import inputs
from farm.plan.channel_choice import best_channel
from farm.plan.compat.stack import effects
from farm.plan.environment import (
    LEFT_OUT,
    environment,
    feature_settings,
    filled,
    missing_features,
    needs,
    placeholders,
)
from farm.plan.file import Plan, SourcePlan
from farm.plan.options import OPTIONS, Choice
from farm.plan.platforms.base import platform
from farm.plan.recipe import folder as recipe_folder
from farm.plan.recipe import job_digest, job_files
from farm.plan.selectors import Candidate, Judgement, Selectors
from farm.wheel.policy import Policy


def resolve(project: Path, selectors: Selectors) -> Plan:
    """Resolve selectors into a plan; `project` is the folder that holds `ci/`.

    Raises UsageError: a name is unknown or a configuration file is wrong; NotBuildableError: the
    combination cannot be built; every reason is in the message.
    """
    verdict = best_channel(project, selectors)
    verdict.judgement.require_buildable()
    candidate = verdict.candidate
    try:
        return _plan(candidate)
    except ValidationError as error:  # what a recipe may say, and no plan may hold
        first = error.errors()[0]
        line = where(recipe_folder(candidate.pins.recipe) / "recipe.yaml", *first["loc"])
        raise UsageError(
            f"{line}: {first_fault(error)}", hint="docs/tutorials/your-package.md has the keys"
        ) from error


def judge(
    project: Path, selectors: Selectors, fields: Mapping[str, Any] | None = None
) -> Judgement:
    """The reasons against building the selectors; `fields` are further fields of the stack, such as
    a driver.
    """
    return best_channel(project, selectors, fields).judgement


def _plan(wanted: Candidate) -> Plan:
    recipe = wanted.recipe
    stack = wanted.stack
    pins = wanted.pins
    values = placeholders(wanted)
    system = platform(stack.platform)
    if stack.cuda and recipe.device_code and "nvcc" not in recipe.components:
        line = where(recipe_folder(pins.recipe) / "recipe.yaml", "components")
        raise UsageError(
            f"{line}: components: nothing compiles CUDA code for {stack.variant}: nvcc is missing",
            hint="add nvcc, headers and cudart; or, for a package without CUDA code of its own, "
            "`device_code: false`",
        )
    env = environment(wanted, values)
    features = feature_settings(wanted)
    present = [name for name, setting in features.items() if setting.on]
    packages = inputs.debian_packages(system.packages(recipe, stack), stack)
    if system.facts.in_images:
        packages += [
            name
            for option in OPTIONS.values()
            for name in option.packages(wanted.value(option.name))
        ]
    if stack.toolkit == "nvidia":
        packages.append("ca-certificates")  # its archives come over https
    files = job_files(pins.recipe)
    inputs.check_changes(pins.recipe, recipe, files, stack.platform)
    patch_files = [name for name in files if name.startswith("patches/")]
    if patch_files and system.facts.in_images:
        packages.append("patch")
    return Plan(
        package=recipe.package,
        version=values["version"],
        variant=str(stack.variant),
        platform=stack.platform,
        machine=stack.variant.machine,
        channel=wanted.channel.name,
        # In one form: order, other names and what the build lacks anyway make no other plan.
        options={name: choice.value for name, choice in wanted.chosen.items()}
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
        python=inputs.python_plan(stack),
        toolkit=inputs.toolkit(recipe, stack),
        # Sorted, like every list here: the digest must not depend on the order in which parts were
        # added.
        apt=sorted(set(packages)),
        env={name: str(choice.value) for name, choice in sorted(env.items())},
        recipe=pins.recipe,
        source=inputs.source(pins.recipe, recipe, stack.torch),
        subdirectory=recipe.subdirectory,
        parts=inputs.parts(recipe, stack, pins.base, present),
        patch_files=patch_files,
        job_files=job_digest(files),
        tiers_off=catalog.cpu_levels()[stack.variant.cpu].without,
        cmake={
            name: value for word in effects(stack).values() for name, value in word.cmake.items()
        },
        memory_per_job_gb=recipe.memory_per_job_gb,
        timeout_minutes=recipe.timeout_minutes,
        needs=needs(wanted),
        build_requires=_build_requires(wanted),
        vendor_into=recipe.vendor_into,
        repair=recipe.repair_on(stack.platform),
        exclude=recipe.exclude,
        opens=system.opens(recipe, stack),
        library_wheels=inputs.library_wheels(recipe, stack, wanted.value("cuda_libraries")),
        features=present,
        without=missing_features(wanted, features),
        verify=_policy(wanted, values),
        requires=_requirements(wanted, values),
        windows=system.details(recipe, stack),
        origins=_origins(wanted, env),
    )


def _requirements(wanted: Candidate, values: Mapping[str, str]) -> list[str]:
    """The requirements of METADATA. Raises UsageError: one is no requirement."""
    file = recipe_folder(wanted.pins.recipe) / "recipe.yaml"
    requirements = [
        filled(text, values, file, "requires", index)
        for index, text in enumerate(wanted.recipe.requires)
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


def _origins(wanted: Candidate, env: Mapping[str, Choice]) -> dict[str, str]:
    origins = {"channel": wanted.channel_origin}
    origins |= {name: choice.origin for name, choice in wanted.chosen.items()}
    if wanted.stack.standalone is not None:
        base = catalog.debian_releases()[str(wanted.pins.base)]
        python = f"an outdated {base.python}" if base.outdated else base.python
        origins["python"] = f"standalone: {wanted.pins.base} has {python}"
    return origins | {f"env.{name}": choice.origin for name, choice in env.items()}


def _build_requires(wanted: Candidate) -> list[SourcePlan]:
    """Wheels that a standalone Python needs for the build and PyTorch's own, then those of the
    recipe beside them.
    """
    wheels = [
        *inputs.standalone_wheels(wanted.stack),
        *inputs.official_torch(wanted.pins.official, wanted.recipe, wanted.stack),
    ]
    if "torch" in wanted.recipe.needs and not any(wheel.package == "torch" for wheel in wheels):
        wheels += inputs.nccl_of_torch(wanted.channel.text.recipe_of("torch"), wanted.stack)
    packages = {wheel.package for wheel in wheels}
    recipe_wheels = inputs.build_requires(
        wanted.pins.recipe, wanted.recipe, wanted.stack, wanted.pins.base
    )
    return [*wheels, *(wheel for wheel in recipe_wheels if wheel.package not in packages)]


def _policy(wanted: Candidate, values: Mapping[str, str]) -> Policy:
    """The policy of verify: the recipe's rules, those that the channel names in their place, and
    the variant.
    """
    recipe = wanted.recipe
    pins = wanted.pins
    variant = wanted.stack.variant
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
            "platform": f"{wanted.stack.platform}_{variant.machine}",
            "sass": sms,
            "ptx": sms[-1:] if wanted.stack.ptx else [],
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
