"""`farm plan`: show what would be built, what it costs, and where each value comes from."""

import argparse
import platform as system
import sys
from collections.abc import Iterator
from pathlib import Path

from farm import catalog
from farm.base.errors import FarmError
from farm.base.text import duration
from farm.catalog.gpus import is_integrated
from farm.cli import show
from farm.cli.selection import project_of, selectors_of
from farm.machine.doctor import needs
from farm.machine.host import Machine as Host
from farm.plan.build import judge, resolve
from farm.plan.environment import feature_rows
from farm.plan.evidence import Evidence, load_evidence
from farm.plan.file import Plan
from farm.plan.options import OPTIONS
from farm.plan.platforms.base import platform
from farm.plan.recipe import recipe
from farm.plan.recommend import Machine, buildable_here
from farm.plan.settings import Settings
from farm.platforms.facts import facts

Row = tuple[str, str, str]


def run_plan(args: argparse.Namespace) -> int:
    project, settings = project_of(args)
    selectors = selectors_of(args, project, settings)
    plan = resolve(project, selectors)
    if args.json:
        print(plan.to_json(), end="")
        return 0
    evidence = load_evidence(project)
    show.say(
        f"{plan.package} {plan.version} for {plan.variant} on {plan.platform} (plan "
        f"{plan.digest[:12]})"
    )
    for what, text in [
        *first(project, settings, plan),
        *feature_rows(plan.features, plan.without),
        *without_device_code(plan),
        *cost(plan),
        *((what, f"{text} ({source})") for what, text, source in evidence.rows(plan)),
        *(("warning", reason.text) for reason in judge(project, selectors).rules),
        *instead(project, plan, evidence),
    ]:
        line = f"  {what:<11} {text}"
        # As the table below: whole in a pipe, where it is read by line.
        if what and sys.stdout.isatty():
            show.prose(line, 12)
        else:
            show.say(line)
    print()
    rows = values(plan)
    if args.all:
        rows += evidence.details(plan)
        shown = {what for what, _, _ in rows}
        names = (key for key in plan.env if f"env {key}" not in shown)
        rows += [(f"env {key}", plan.env[key], plan.origins[f"env.{key}"]) for key in names]
    show.table("", ("what", "value", "origin"), rows)
    if not args.all:
        show.say(
            f"--all prints {len(plan.env)} variables of the build and each of its tests as well"
        )
    return 0


def values(plan: Plan) -> list[Row]:
    """The choices that make the build, each with its origin."""
    rows = [("channel", plan.channel, plan.origins["channel"])]
    options = ((name, value) for name, value in plan.options.items() if value is not None)
    for name, value in options:
        rows.append((name, str(value), plan.origins[name]))
        rows += [
            (f"env {key}", plan.env[key], plan.origins[f"env.{key}"])
            for key in OPTIONS[name].environment(value)
        ]
    if plan.base:
        reach = f"runs at least on {', '.join(catalog.reach(plan.base)) or 'newer ones'}"
        if any(is_integrated(sm) for sm in plan.parsed_variant.sms):
            reach = f"its CUDA needs {catalog.architectures().jetson.system} or newer"
        glibc = catalog.debian_releases()[plan.base].glibc
        rows.append(
            (
                "base",
                plan.base,
                f"glibc {glibc} at most, the built wheel's tag says it exactly: {reach}",
            )
        )
    if plan.python:
        rows.append(
            (
                "python",
                f"{plan.python.version} from python-build-standalone",
                plan.origins["python"],
            )
        )
    if plan.windows:
        rows.append(("openmp", plan.windows.openmp, "the one OpenMP runtime of the build"))
    rows += [("needs", need, f"recipe {plan.recipe}") for need in plan.needs]
    for name in plan.features:
        if why := catalog.features()[name].untried.get(plan.platform):
            rows.append(("untried", name, why))
    return rows + [
        ("not pinned", text, f"docs/{plan.platform}.md")
        for text in platform(plan.platform).floating(plan)
    ]


def first(project: Path, settings: Settings, plan: Plan) -> Iterator[tuple[str, str]]:
    """Builds needed before, and their hours; or that the index has them, or PyTorch's own is
    fetched.
    """
    yield from (
        ("torch", f"PyTorch's own: {wheel.file}, from {wheel.url or 'the Python index'}")
        for wheel in plan.build_requires
        if wheel.package == "torch"
    )
    if not plan.needs:
        return
    from farm.run.inputs import standing

    try:
        for need, missing in standing(settings.index_at(project), plan, project):
            yield (
                "first",
                f"{need}: {f'not in the index; {missing}' if missing else 'the index has it'}",
            )
    except FarmError as error:
        yield "first", f"{', '.join(plan.needs)}: the index cannot be asked: {error}"


def without_device_code(plan: Plan) -> Iterator[tuple[str, str]]:
    """The build for the CPU alone, where one for a GPU would be the same code."""
    variant = plan.parsed_variant
    if variant.sms and not recipe(plan.recipe).is_for_gpus:
        yield (
            "the same",
            f"it has no code for a GPU: cpu-{variant.cpu}-{variant.python} is the same code",
        )


def instead(project: Path, plan: Plan, evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The tested build for the same cards and CPU, beside one of PyTorch that was not tested."""
    variant = plan.parsed_variant
    machine = Machine(variant.sms, (variant.cpu,), plan.platform, (variant.python,), together=True)
    if plan.package == "torch" and not evidence.of(plan):
        for own in buildable_here(project, machine, limit=1):
            if own.proved:
                yield "instead", f"{own.release} ({own.standing}):"
                yield "", f"farm plan {own.words}"


def cost(plan: Plan) -> Iterator[tuple[str, str]]:
    """Time, memory, disk and downloads of the build; the time for the cores and memory of this
    machine.
    """
    known = recipe(plan.recipe)
    host = Host()
    memory = host.memory()[0]
    cores = host.cores()
    jobs = max(1, min(cores, int(memory / (plan.memory_per_job_gb * 1e9))))
    here = (
        f"with {jobs} compilers at a time ({cores} cores, {memory / 1e9:.0f} GB; "
        f"{plan.memory_per_job_gb} GB each)"
    )
    hours = known.cost_for(plan.parsed_variant.sms)
    if hours is None:
        yield "time", f"not measured; here {here}"
    else:
        word, count = hours
        if plan.options["without"]:
            less = f", less without {plan.options['without']}"
        else:
            less = ""
        yield (
            "time",
            (
                f"{word} {count:g} CPU hours{less}: {word} {duration(count * 3600 / jobs)} here, "
                f"{here}"
            ),
        )
    if plan.base and plan.machine != (found := facts(plan.platform).machine(system.machine())):
        yield (
            "emulated",
            f"on {found}, by qemu: image, build and test take far longer (docs/how-to/runners.md)",
        )
    sizes = [f"{known.disk_gb:g} GB for the build"]
    if plan.base:
        sizes.append(f"{needs().image_gb} GB for the image")
    if known.cost and known.cost.installed_gb and plan.toolkit:
        sizes.append(f"{known.cost.installed_gb:g} GB where it is installed, with CUDA's libraries")
    yield "disk", ", ".join(sizes)
    if known.cost and known.cost.download_gb:
        yield "downloads", f"{known.cost.download_gb:g} GB of tools and sources"
