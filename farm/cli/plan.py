"""`farm plan`: what would be built, what it costs, what was tested of it, and where each value comes from."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from farm.cli.options import add_selectors

if TYPE_CHECKING:
    from pathlib import Path

    from farm.plan.evidence import Evidence
    from farm.plan.file import Plan
    from farm.plan.settings import Settings

Row = tuple[str, str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selectors(parser)
    parser.add_argument("--all", action="store_true", help="print the variables and every test of the build as well")


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.cli.selection import plan_of
    from farm.plan.environment import feature_rows
    from farm.plan.evidence import load_evidence

    project, settings, plan = plan_of(args)
    if args.json:
        print(plan.to_json(), end="")
        return 0
    evidence = load_evidence(project)
    show.say(f"{plan.package} {plan.version} for {plan.variant} on {plan.platform} (plan {plan.digest[:12]})")
    for what, text in [
        *first(project, settings, plan),
        *feature_rows(plan.features, plan.without),
        *without_device_code(plan),
        *cost(plan),
        *((what, f"{text} ({source})") for what, text, source in evidence.rows(plan)),
        *instead(project, plan, evidence),
    ]:
        show.say(f"  {what:<11} {text}")
    print()
    rows = values(plan)
    if args.all:
        rows += evidence.details(plan)
        shown = {what for what, _, _ in rows}
        names = (key for key in plan.env if f"env {key}" not in shown)
        rows += [(f"env {key}", plan.env[key], plan.origins[f"env.{key}"]) for key in names]
    show.table("", ("what", "value", "origin"), rows)
    if not args.all:
        show.say(f"--all prints {len(plan.env)} variables of the build and each of its tests as well")
    return 0


def values(plan: "Plan") -> list[Row]:
    """The choices that make the build, each with its origin."""
    from farm import catalog
    from farm.plan.options import OPTIONS
    from farm.platforms.base import platform

    rows = [("channel", plan.channel, plan.origins["channel"])]
    options = ((name, value) for name, value in plan.options.items() if value is not None)
    for name, value in options:
        rows.append((name, str(value), plan.origins[name]))
        rows += [(f"env {key}", plan.env[key], plan.origins[f"env.{key}"]) for key in OPTIONS[name].environment(value)]
    if plan.base:
        reach = ", ".join(catalog.reach(plan.base)) or "newer ones"
        rows.append(
            ("base", plan.base, f"glibc {catalog.debian_releases()[plan.base].glibc}: runs at least on {reach}")
        )
    if plan.python:
        rows.append(("python", f"{plan.python.version} from python-build-standalone", plan.origins["python"]))
    if plan.windows:
        rows.append(("openmp", plan.windows.openmp, "the one OpenMP runtime of the build"))
    rows += [("needs", need, f"recipe {plan.recipe}") for need in plan.needs]
    for name in plan.features:
        if why := catalog.features()[name].untried.get(plan.platform):
            rows.append(("untried", name, why))
    return rows + [("not pinned", text, f"docs/{plan.platform}.md") for text in platform(plan.platform).floating(plan)]


def first(project: "Path", settings: "Settings", plan: "Plan") -> Iterator[tuple[str, str]]:
    """Builds needed before, and their hours; or that the index has them, or PyTorch's own is fetched."""
    yield from (
        ("torch", f"PyTorch's own: {wheel.file}, from {wheel.url or 'the Python index'}")
        for wheel in plan.build_requires
        if wheel.package == "torch"
    )
    if not plan.needs:
        return
    from farm.base.errors import FarmError
    from farm.run.inputs import standing

    try:
        for need, missing in standing(settings.index_at(project), plan, project):
            yield "first", f"{need}: {f'not in the index; {missing}' if missing else 'the index has it'}"
    except FarmError as error:
        yield "first", f"{', '.join(plan.needs)}: the index cannot be asked: {error}"


def without_device_code(plan: "Plan") -> Iterator[tuple[str, str]]:
    """The build for the CPU alone, where one for a GPU would be the same code."""
    from farm.plan.recipe import recipe

    variant = plan.parsed_variant
    if variant.sms and not recipe(plan.recipe).is_for_gpus:
        yield "the same", f"it has no code for a GPU: cpu-{variant.cpu}-{variant.python} is the same code"


def instead(project: "Path", plan: "Plan", evidence: "Evidence") -> Iterator[tuple[str, str]]:
    """The tested build for the same cards and CPU, beside one of PyTorch that was not tested."""
    from farm.plan.recommend import Machine, own_builds

    variant = plan.parsed_variant
    machine = Machine(variant.sms, (variant.cpu,), plan.platform, (variant.python,))
    if plan.package == "torch" and not evidence.of(plan):
        for own in own_builds(project, machine, limit=1):
            if own.proved:
                yield "instead", f"{own.release} ({own.standing}): farm plan {own.words}"


def cost(plan: "Plan") -> Iterator[tuple[str, str]]:
    """Time, memory, disk and downloads of the build; the time for the cores and memory of this machine."""
    from platform import machine

    from farm.base.text import duration
    from farm.machine.doctor import Site, needs
    from farm.plan.recipe import recipe
    from farm.platforms.facts import facts

    known, site = recipe(plan.recipe), Site()
    memory, cores = site.memory()[0], site.cores()
    jobs = max(1, min(cores, int(memory / (plan.memory_per_job_gb * 1e9))))
    here = f"with {jobs} compilers at a time ({cores} cores, {memory / 1e9:.0f} GB; {plan.memory_per_job_gb} GB each)"
    hours = known.cost_for(plan.parsed_variant.sms)
    if hours is None:
        yield "time", f"not measured; here {here}"
    else:
        word, count = hours
        yield "time", f"{word} {count:g} CPU hours: {word} {duration(count * 3600 / jobs)} here, {here}"
    if plan.base and plan.machine != (found := facts(plan.platform).machine(machine())):
        yield "emulated", f"on {found}, by qemu: image, build and test take far longer (docs/runners.md)"
    sizes = [f"{known.disk_gb:g} GB for the build"]
    sizes += [f"{needs().image_gb} GB for the image"] if plan.base else []
    if known.cost and known.cost.installed_gb and plan.toolkit:
        sizes.append(f"{known.cost.installed_gb:g} GB where it is installed, with CUDA's libraries")
    yield "disk", ", ".join(sizes)
    if known.cost and known.cost.download_gb:
        yield "downloads", f"{known.cost.download_gb:g} GB of tools and sources"
