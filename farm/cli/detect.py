"""`farm detect`: what this machine is, which wheel is for it, and the pip command."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from farm.base.errors import UsageError
from farm.base.project import find_project
from farm.cli import show
from farm.machine.detect.choose import Offer, Recommendation, choose, machine_of
from farm.machine.detect.machine import ThisMachine
from farm.machine.detect.readings import Readings, take
from farm.plan.matrix import load_matrix
from farm.plan.recommend import Own, own_builds
from farm.plan.settings import load_settings
from farm.platforms.facts import DEFAULT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload",
        default="general",
        choices=["general", "bf16", "int8"],
        help="what the CPU will compute (default: general)",
    )
    parser.add_argument("--index", metavar="URL", help="https://…, a folder or s3://… (default: ci/farm.yaml)")


def run(args: argparse.Namespace) -> int:
    """Print the readings and the recommendation; 0 if there is a variant, else 3."""
    readings = take(ThisMachine())
    project = _project(args)
    offers = tuple(_offers(project, readings.os.system)) if project else None
    index = _index_url(args.index, project)
    tested = _tested(project, readings) if project and args.workload == "general" else None
    recommendation = choose(readings, workload=args.workload, offers=offers, index_url=index, tested=tested)
    if place := _index(args.index, project):
        from farm.machine.detect.published import with_published

        recommendation = with_published(recommendation, readings, place)
    if project and recommendation.channel and recommendation.variant and recommendation.pip is None:
        from farm.plan.evidence import load_evidence

        asked = (recommendation.channel, "torch", readings.os.system, recommendation.variant)
        reasons = (*recommendation.reasons, load_evidence(project).of_variant(*asked))
        recommendation = recommendation.model_copy(update={"reasons": reasons})
    if args.json:
        found = {"readings": readings, "recommendation": recommendation}
        print(
            json.dumps({name: model.model_dump(mode="json", by_alias=True) for name, model in found.items()}, indent=2)
        )
    else:
        _print(readings, recommendation)
    return 0 if recommendation.variant else 3


def _tested(project: Path, readings: Readings) -> Own | None:
    """The build for this machine that was tested furthest, as `farm why --official` and the site name it."""
    machine = machine_of(readings)
    platform = "" if machine.platform == DEFAULT else f" --platform {machine.platform}"
    for own in own_builds(project, machine) if machine.cpus and machine.pythons else ():
        # The command that builds it has no other options.
        if own.proved and own.words == f"--variant {own.variant} --channel {own.channel}{platform}":
            return own
    return None


def _project(args: argparse.Namespace) -> Path | None:
    """The project that was named, or the one around this folder if there is one."""
    if args.project:
        return find_project(args.project)
    try:
        return find_project(Path.cwd())
    except UsageError:
        return None


def _offers(project: Path, platform: str) -> Iterator[Offer]:
    matrix = load_matrix(project)
    for build in matrix.builds():
        torch = matrix.channels[build.channel].text.options["torch"]
        if build.package == "torch" and build.platform == platform and torch:
            yield Offer(build.channel, str(torch), build.cuda, build.variant)


def _index(named: str | None, project: Path | None) -> str | None:
    """Where the index can be asked: `--index`, else `index:` of ci/farm.yaml."""
    if named or project is None:
        return named
    index = load_settings(project).index
    return index if "://" in index else str(project / index)


def _index_url(named: str | None, project: Path | None) -> str | None:
    """The root of the same index as pip sees it."""
    index = _index(named, project)
    if index is None or index.startswith(("https://", "http://")):
        return index
    from farm.index.backends import open_store

    # The public address is that of the index in ci/farm.yaml: of one that was named it says nothing.
    public = load_settings(project).index_public_url if project and not named else None
    return public or open_store(index).url("")


def _print(readings: Readings, found: Recommendation) -> None:
    cpu, os = readings.cpu, readings.os
    rows = [("system", f"{os.name} {os.version}" + (f", {os.libc}" if os.libc else ""))]
    names = [name for name in (cpu.name, cpu.microarchitecture, cpu.machine) if name]
    rows.append(("CPU", ", ".join(names)))
    for gpu in readings.gpus:
        facts = [gpu.name]
        facts += [f"compute capability {gpu.capability}"] if gpu.capability else []
        facts += [f"{gpu.memory_mb} MiB"] if gpu.memory_mb is not None else []
        rows.append(("GPU", f"{', '.join(facts)} ({gpu.source})"))
    rows += [("driver", readings.driver)] if readings.driver else []
    rows += [(f"Python {python.name[2]}.{python.name[3:]}", python.path) for python in readings.pythons]
    rows += [("not read", f"{item.what}: {item.why}") for item in readings.missing]
    show.table("", ("this machine", ""), rows)
    print()
    lines = [("variant", found.variant or "none")]
    lines += [("channel", found.channel)] if found.channel else []
    lines += [("wheel", found.state)] if found.state else []
    lines += [("tested", test) for test in found.tests]
    lines += [("why", reason) for reason in found.reasons]
    lines += [("warning", warning) for warning in found.warnings]
    lines += [("or", f"{other.variant}: {other.why}") for other in found.alternatives]
    show.table("", ("the wheel for it", ""), lines)
    if found.pip:
        print()
        show.say(found.pip)
