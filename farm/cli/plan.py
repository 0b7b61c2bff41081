"""`farm plan`: show what would be built, what it costs, and where each value comes from."""

import argparse
import platform as system
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm import catalog
from farm.base.errors import FarmError
from farm.base.text import duration
from farm.catalog.gpus import is_integrated
from farm.cli import show
from farm.cli.advice import Advice, advice_for
from farm.cli.batch import PUBLISHED, TO_BUILD, Batch, Build, hours_here
from farm.cli.selection import each_build, project_of, selectors_of
from farm.cli.wheel_lines import driver_range
from farm.machine.doctor import needs
from farm.machine.host import Machine as Host
from farm.plan.build_variables import feature_rows
from farm.plan.compat import official_wheels
from farm.plan.evidence import Evidence, load_evidence
from farm.plan.file import Plan
from farm.plan.options import OPTIONS
from farm.plan.package_set import makers_first
from farm.plan.platforms.base import platform
from farm.plan.recipe import Recipe, recipe
from farm.plan.recommend import Machine, buildable_here
from farm.plan.request import BuildRequest
from farm.plan.resolve import check_request, resolve
from farm.plan.settings import Settings
from farm.platforms.facts import DEFAULT, facts
from farm.run.workspace import Watcher, Workspace, journal_path, open_journal

if TYPE_CHECKING:
    from farm.site.smoke_reports import Smoke

Line = tuple[str, str]
"""What is said, and the text."""
Row = tuple[str, str, str]
"""A choice, its value and where it comes from."""
GB = 1e9
CLUSTER_S = 10.0
"""How long a cluster may take to name its time limits."""


@dataclass(frozen=True)
class PlanReport:
    """What there is to say of a plan.

    Attributes:
        plan: The plan itself.
        advice: The wheel of PyTorch that makes the build needless.
        lines: Cost, features, tests and warnings.
        choices: The choices that make the build.
        details: All variables of the build and each of its tests.
    """

    plan: Plan
    advice: Advice | None
    lines: tuple[Line, ...]
    choices: tuple[Row, ...]
    details: tuple[Row, ...]


def run_plan(args: argparse.Namespace) -> int:
    """Print a plan: as its file, or for a person."""
    project, settings = project_of(args)
    complete = args.all
    args.all = False  # `--all` of this command prints more of one build
    builds = list(each_build(args, project))
    if len(builds) > 1:
        return _run_plans(args, project, settings, builds)
    request = selectors_of(builds[0], project, settings)
    if args.json:
        print(resolve(project, request).to_json(), end="")
    else:
        _print(report_of(project, settings, request), complete=complete)
    return 0


def report_of(project: Path, settings: Settings, request: BuildRequest) -> PlanReport:
    """Resolve a request and collect what there is to say of its plan."""
    plan = resolve(project, request)
    evidence = load_evidence(project)
    tests = [(label, f"{text} ({source})") for label, text, source in evidence.rows(plan)]
    done_here = _done_here(project, settings, plan)
    if not evidence.of(plan) and "tested here" in dict(done_here):
        tests = []  # that nothing ran to its end is true of what comes with the farm alone
    rules = check_request(project, request).rules
    warnings = [(reason.severity, reason.text) for reason in rules]
    choices = _choices(plan)
    return PlanReport(
        plan=plan,
        advice=advice_for(plan),
        lines=(
            *_needed_before(project, settings, plan),
            *feature_rows(plan.features, plan.without),
            *_same_without_a_gpu(plan),
            *_cost(plan),
            *done_here,
            *_tested_in_the_index(project, settings, plan),
            *_on_slurm(settings, plan),
            *tests,
            *warnings,
            *_tested_instead(project, plan, evidence),
        ),
        choices=tuple(choices),
        details=(*evidence.details(plan), *_variables(plan, choices)),
    )


def _print(report: PlanReport, *, complete: bool) -> None:
    """Print a report for a person; `complete`: with all variables and tests."""
    plan = report.plan
    if report.advice:
        show.prose(f"{report.advice.text}:")
        show.say(f"  {report.advice.pip}")
        if report.advice.end:
            show.prose(f"  {report.advice.end}")
    show.prose(
        f"{plan.package} {plan.version} for {plan.variant} on {plan.platform} (plan "
        f"{plan.digest[:12]})"
    )
    if complete:
        for label, text in report.lines:
            show.say(f"  {label:<11} {text}")
        print()
        show.table("", ("what", "value", "origin"), [*report.choices, *report.details])
        return
    for label, text in _on_one_screen(report):
        if label:
            show.prose(f"  {label:<11} {text}", 12)
        else:  # a command to copy
            show.say(f"              {text}")
    show.say(f"  next        farm submit {_typed(plan)}")
    show.say("--all prints the reasons, the origins and all variables")


SCREENFUL = 5
"""How many systems are named on one screen."""


def _on_one_screen(report: PlanReport) -> Iterator[Line]:
    """What a person needs of a plan: what, what it cannot do, where it runs, cost, tests, and the
    next command.
    """
    plan = report.plan
    yield "stack", _stack(plan)
    texts: dict[str, list[str]] = {}
    for label, text in report.lines:
        texts.setdefault(label, []).append(text)
    texts.pop("note", None)
    for text in texts.pop("with", ()):
        yield "with", text
    if texts.pop("without", None):  # its reasons are for --all
        yield "without", ", ".join(map(_title, plan.without))
    yield "runs on", _systems(plan)
    costs = [*texts.pop("time", ()), *texts.pop("disk", ()), *texts.pop("downloads", ())]
    yield "cost", "; ".join(costs)
    tests = texts.pop("tested", ())
    if tests:
        yield "tested", tests[-1]  # of several proofs of one build the last says the most
    if _is_torch(plan):
        faults = official_wheels.faults_text(str(plan.options.get("torch")), plan.patch_files)
        if faults:
            yield "security", faults
    for label, lines in texts.items():
        for text in lines:
            yield label, text


def _title(feature: str) -> str:
    """The name of a feature for people; one that the catalogue does not have keeps its own."""
    features = catalog.features()
    if feature not in features:
        return feature
    return features[feature].title


def _is_torch(plan: Plan) -> bool:
    return plan.package == "torch" and bool(plan.options.get("torch"))


def _stack(plan: Plan) -> str:
    options = plan.options
    parts = [f"channel {plan.channel} ({plan.origins['channel']})"]
    if options.get("torch"):
        parts.append(f"torch {options['torch']}")
    if options.get("cuda"):
        parts.append(f"CUDA {options['cuda']} ({options['toolkit']})")
    if options.get("cudnn"):
        parts.append(f"cuDNN {options['cudnn']}")
    if options.get("blas"):
        parts.append(str(options["blas"]))
    return ", ".join(parts)


def _systems(plan: Plan) -> str:
    """Python, systems and drivers that the wheel is for."""
    variant = plan.parsed_variant
    parts = [f"Python {variant.python_version}"]
    if any(map(is_integrated, variant.sms)):
        parts.append(f"{catalog.architectures().jetson.system} or newer")
    elif plan.base:
        systems = catalog.reach(plan.base)
        systems_text = "newer systems"
        if systems:  # the oldest; the version of glibc decides for others
            systems_text = f"{', '.join(systems[:3])} and newer"
        parts.append(f"{systems_text} (glibc {catalog.debian_releases()[plan.base].glibc} at most)")
    else:
        parts.append(facts(plan.platform).title)
    cuda = plan.options.get("cuda")
    if cuda and variant.sms:
        parts.append(f"driver {_drivers(plan, str(cuda))}")
    return "; ".join(parts)


def _drivers(plan: Plan, cuda: str) -> str:
    """The drivers that run the wheel on its cards: `450.80.02 or newer, up to branch 470`."""
    floor = catalog.lowest_driver(cuda, plan.platform)
    return driver_range(floor or "not known", plan.parsed_variant.sms)


def _typed(plan: Plan) -> str:
    """The options that give this plan again, as they are typed."""
    words = [f"--variant {plan.variant}"]
    if plan.package != "torch":
        words.append(f"--package {plan.package}")
    if plan.platform != DEFAULT:
        words.append(f"--platform {plan.platform}")
    if plan.origins["channel"] == "--channel":
        words.append(f"--channel {plan.channel}")
    for name, value in plan.options.items():
        option = OPTIONS[name]
        if plan.origins.get(name) == option.flag and value is not None:
            words.append(option.typed(value))
    return " ".join(words)


def _run_plans(
    args: argparse.Namespace,
    project: Path,
    settings: Settings,
    chosen: list[argparse.Namespace],
) -> int:
    """Print a line for each of several builds, and what they cost together."""
    from farm.run.resume import find_published

    workspace = Workspace(project, settings, Watcher())
    states = {}
    plans_by_digest = {}
    for words in chosen:
        plan = resolve(project, selectors_of(words, project, settings))
        plans_by_digest[plan.digest] = plan
        states[plan.digest] = TO_BUILD
        if find_published(workspace, plan) is not None:
            states[plan.digest] = PUBLISHED
    plans = makers_first(list(plans_by_digest.values()))
    hours = hours_here(project, settings, [plan.package for plan in plans])
    builds = [Build(plan, states[plan.digest], hours.get(plan.package)) for plan in plans]
    batch = Batch(builds)
    if args.json:
        show.json_document(batch.to_json())
    else:
        batch.show()
    return 0


def _done_here(project: Path, settings: Settings, plan: Plan) -> list[Line]:
    """What this project's journal says of the build."""
    from farm.run.built_here import rows

    if not journal_path(project, settings).is_file():
        return []
    with open_journal(project, settings) as journal:
        return list(rows(journal, plan.digest, plan.package))


def _tested_in_the_index(project: Path, settings: Settings, plan: Plan) -> Iterator[Line]:
    """The smoke tests that the project's index keeps of the wheel of this very plan."""
    from farm.cli.index_questions import answer_in_time
    from farm.index.store_urls import open_store
    from farm.run.published import published_wheel
    from farm.site.smoke_reports import kept_tests, newest

    workspace = Workspace(project, settings, Watcher())

    def ask() -> "Sequence[Smoke]":
        record = published_wheel(workspace, plan)
        if record is None:
            return ()
        store = open_store(workspace.index_url)
        tests = kept_tests(store, {record.filename: record.sha256}, by_wheel=True)
        return newest(tests.get(record.filename, ()))

    try:
        tests = answer_in_time(ask)
    except FarmError as error:
        yield "index", f"not asked for tests of the wheel: {error}"
        return
    for test in tests:
        yield "in the index", f"tested on {test.where}, {test.date}: {test.outcome}"


def _on_slurm(settings: Settings, plan: Plan) -> Iterator[Line]:
    """The time of a job on the project's cluster, where a limit there, or ci/farm.yaml, allows less
    than the recipe.
    """
    if settings.slurm is None:
        return
    from farm.engines.slurm import SlurmEngine

    try:
        limit = SlurmEngine(settings.slurm).build_time_limit(CLUSTER_S)
    except FarmError as error:
        yield "on Slurm", f"the time limits there are not known: {error}"
        return
    if limit and limit.minutes < plan.timeout_minutes:
        text = f"a job gets {limit.minutes} of the recipe's {plan.timeout_minutes} minutes: the "
        text += f"limit of {limit.source}; a build that takes longer goes on in another job"
        yield "on Slurm", text


def _choices(plan: Plan) -> list[Row]:
    """The choices that make the build, each with its origin."""
    rows = [("channel", plan.channel, plan.origins["channel"])]
    for name, value in plan.options.items():
        if value is None:
            continue
        rows.append((name, str(value), plan.origins[name]))
        for key in OPTIONS[name].environment(value):
            rows.append((f"env {key}", plan.env[key], plan.origins[f"env.{key}"]))
    if plan.base:
        rows.append(("base", plan.base, _runs_on(plan, plan.base)))
    if plan.python:
        python = f"{plan.python.version} from python-build-standalone"
        rows.append(("python", python, plan.origins["python"]))
    if plan.windows:
        rows.append(("openmp", plan.windows.openmp, "the one OpenMP runtime of the build"))
    for need in plan.needs:
        rows.append(("needs", need, f"recipe {plan.recipe}"))
    for name in plan.features:
        reason = catalog.features()[name].untried.get(plan.platform)
        if reason:
            rows.append(("untried", name, reason))
    for text in platform(plan.platform).floating(plan):
        rows.append(("not pinned", text, f"docs/{plan.platform}.md"))
    return rows


def _runs_on(plan: Plan, base: str) -> str:
    """The systems that a wheel of a base image runs on."""
    glibc = catalog.debian_releases()[base].glibc
    if any(map(is_integrated, plan.parsed_variant.sms)):
        reach = f"its CUDA needs {catalog.architectures().jetson.system} or newer"
    else:
        reach = f"runs at least on {', '.join(catalog.reach(base)) or 'newer ones'}"
    return f"glibc {glibc} at most, the built wheel's tag says it exactly: {reach}"


def _variables(plan: Plan, choices: list[Row]) -> Iterator[Row]:
    """The variables of the build that are not among the choices."""
    listed_labels = {label for label, _, _ in choices}
    for key, value in plan.env.items():
        if f"env {key}" not in listed_labels:
            yield f"env {key}", value, plan.origins[f"env.{key}"]


def _needed_before(project: Path, settings: Settings, plan: Plan) -> Iterator[tuple[str, str]]:
    """Builds needed before, and their hours; or that the index has them, or PyTorch's own is
    fetched.
    """
    for wheel in plan.build_requires:
        if wheel.package == "torch":
            yield "torch", f"PyTorch's own: {wheel.file}, from {wheel.url or 'the Python index'}"
    if not plan.needs:
        return
    from farm.cli.index_questions import answer_in_time
    from farm.run.needs import standing

    index = settings.index_at(project)
    try:
        for need, missing in answer_in_time(lambda: standing(index, plan, project)):
            if missing:
                yield "first", f"{need}: not in the index; {missing}"
            else:
                yield "first", f"{need}: the index has it"
    except FarmError as error:
        yield "first", f"{', '.join(plan.needs)}: the index cannot be asked: {error}"


def _same_without_a_gpu(plan: Plan) -> Iterator[tuple[str, str]]:
    """The build for the CPU alone, where one for a GPU would be the same code."""
    variant = plan.parsed_variant
    if variant.sms and not recipe(plan.recipe).is_for_gpus:
        yield (
            "the same",
            f"it has no code for a GPU: cpu-{variant.cpu}-{variant.python} is the same code",
        )


def _tested_instead(project: Path, plan: Plan, evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The tested build for the same cards and CPU, beside one of PyTorch that was not tested."""
    if plan.package != "torch":
        return
    # What was proved on another base image is this very build.
    if any(wheel.is_of_stack(plan) for wheel in evidence.wheels):
        return
    variant = plan.parsed_variant
    machine = Machine(variant.sms, (variant.cpu,), plan.platform, (variant.python,), together=True)
    for build in buildable_here(project, machine, limit=1):
        if build.proved:
            yield "instead", f"{build.release} ({build.standing}):"
            yield "", f"farm plan {build.words}"


def _cost(plan: Plan) -> Iterator[Line]:
    """Time, memory, disk and downloads of the build."""
    built = recipe(plan.recipe)
    yield "time", _time(plan, built)
    machine = facts(plan.platform).machine(system.machine())
    if plan.base and plan.machine != machine:
        text = f"on {machine}, by qemu: image, build and test take far longer"
        yield "emulated", f"{text} (docs/how-to/runners.md)"
    sizes = [f"{built.disk_gb:g} GB for the build"]
    if plan.base:
        sizes.append(f"{needs().image_gb} GB for the image")
    if built.cost and built.cost.installed_gb and plan.toolkit:
        sizes.append(f"{built.cost.installed_gb:g} GB where it is installed, with CUDA's libraries")
    yield "disk", ", ".join(sizes)
    if built.cost and built.cost.download_gb:
        yield "downloads", f"{built.cost.download_gb:g} GB of tools and sources"


def _time(plan: Plan, built: Recipe) -> str:
    """CPU hours, and hours with the cores and the memory of this machine."""
    host = Host()
    memory = host.memory()[0]
    cores = host.cores()
    jobs = max(1, min(cores, int(memory / (plan.memory_per_job_gb * GB))))
    jobs_text = (
        f"with {jobs} compilers at a time ({cores} cores, {memory / GB:.0f} GB; "
        f"{plan.memory_per_job_gb} GB each)"
    )
    hours = built.cost_for(plan.parsed_variant.sms)
    if hours is None:
        return f"not measured; here {jobs_text}"
    word, count = hours
    cost = f"{word} {count:g} CPU hours"
    without = plan.options["without"]
    if without:
        cost += f", less without {without}"
    return f"{cost}: {word} {duration(count * 3600 / jobs)} here, {jobs_text}"
