"""The smoke step: installs the wheel from the index as a user would; runs the probe here and on an
emulated CPU.
"""

import hashlib
import shutil
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from farm import catalog
from farm.base.errors import FarmError, InfrastructureError, NoRunnerError
from farm.base.requirement import serves
from farm.base.text import plain_lines
from farm.base.zipapps import pack
from farm.engines.base import Cause, Engine, Job
from farm.index.layout import SMOKE, json_key
from farm.index.pages import parse_page
from farm.index.store_urls import open_store
from farm.plan.file import Plan
from farm.plan.recipe import folder as recipe_folder
from farm.plan.recipe import recipe
from farm.platforms.facts import of_tag
from farm.run.build_job import completed
from farm.run.download import pip_index
from farm.run.site_step import refresh_site
from farm.run.workspace import Outcomes, Step, Workspace
from farm.smoke.emulation import model_for
from farm.smoke.environment import Target, find_python, install, make_environment, other_platform
from farm.smoke.runner import (
    GRACE_S,
    PROBE,
    TAIL_BYTES,
    TESTED_AT,
    TESTED_WHEEL,
    Ended,
    Expectation,
    SmokeReport,
    arguments,
    judge,
    read_document,
    run_probe,
)
from farm.wheel.fatbin import order
from farm.wheel.inspect import inspect
from farm.wheel.metadata import parse_wheel_name


@dataclass(frozen=True)
class Elsewhere:
    """A place for the probe: a job of an engine, in an image, `foreign` where this machine cannot
    run the wheel.
    """

    engine: Engine
    image: str
    foreign: bool = False
    emulated: bool = False


@dataclass(frozen=True)
class SmokeOptions:
    """The options of a smoke test beside the plan.

    `wheel`: its file, where it is at hand: its device code goes into the report; else `filenames`:
    what the index offers of the version; `gpu`: the GPU part must run; `keep`: the reports go into
    the index, which is the project's own; `passed`: names of variables that the test gets, such as
    CUDA_VISIBLE_DEVICES; `elsewhere`: where the probe runs (None: here).
    """

    wheel: Path | None = None
    filenames: tuple[str, ...] = ()
    gpu: bool = False
    keep: bool = True
    passed: tuple[str, ...] = ()
    elsewhere: Elsewhere | None = None


def smoke(
    workspace: Workspace,
    plan: Plan,
    folder: Path,
    outcomes: Outcomes,
    requirement: str,
    source: tuple[str, ...],
    options: SmokeOptions | None = None,
) -> list[str]:
    """Install from the index into a fresh environment and run the probe; what failed, in words."""
    options = options or SmokeOptions()
    watcher = workspace.watcher
    elsewhere = options.elsewhere
    with outcomes.timed("install", watcher) as step:
        place = _install(workspace, plan, folder, step, requirement, source, options)
    if place is None:
        return []
    expect = expectation(plan, options)
    failed = []
    is_kept = False
    model = model_for(plan.parsed_variant.cpu)
    tests = [("smoke", None), (f"smoke ({model.name or plan.parsed_variant.cpu})", model.name)]
    if elsewhere and elsewhere.foreign:  # it is one CPU, its own or an emulated one
        tests = [tests[elsewhere.emulated]]
    for name, emulate in tests:
        with outcomes.timed(name, watcher) as step:
            if name != "smoke" and emulate is None:
                step.outcome = "not run"
                step.result = str(model.reason)
                continue
            if elsewhere and (elsewhere.foreign or emulate is None):
                report = probe_job(workspace, plan, elsewhere, place, expect, outcomes.run, emulate)
            else:
                report = run_probe(
                    place,
                    module=plan.package,
                    expect=expect,
                    timeout_s=workspace.settings.smoke_timeout_s,
                    emulate=emulate,
                    line=watcher.note,
                    passed=options.passed,
                )
            report = with_device_code(report, options.wheel)
            # Names tell the CPUs apart.
            if emulate:
                name_of = f"smoke-{emulate}.json"
            else:
                name_of = "smoke.json"
            (folder / name_of).write_text(report.to_json(), encoding="utf-8")
            step.result = smoke_summary(report)
            if options.keep and report.outcome != "not_run":
                problem = keep_report(workspace, plan, report)
                step.result += f"; not kept in the index: {problem}" if problem else ""
                is_kept = problem is None or is_kept
            if report.outcome == "not_run":
                step.outcome = "not run"
            if report.outcome == "failed":
                step.outcome = "failed"
                causes = "".join(
                    f"\n    why: {cause.what}\n    fix: {cause.fix}" for cause in report.causes
                )
                failed.append(f"{name} failed: {report.reason}{causes}")
    if is_kept:
        refresh_site(workspace, {canonicalize_name(plan.package)})
    # A run succeeds as well where this machine has no Python for the wheel, or too old a glibc.
    if (
        options.keep
        and not failed
        and any(step.name == "smoke" and step.outcome == "done" for step in outcomes.steps)
    ):
        mark = passed_mark(workspace, plan)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return failed


def passed_mark(workspace: Workspace, plan: Plan) -> Path:
    """A file that is there once this plan's wheel, in this form, has passed its test."""
    return workspace.artifacts / "smoke" / f"{plan.digest[:32]}-{plan.cuda_libraries}.passed"


def _install(
    workspace: Workspace,
    plan: Plan,
    folder: Path,
    step: Step,
    requirement: str,
    source: tuple[str, ...],
    options: SmokeOptions,
) -> Path | None:
    """The interpreter of a fresh environment, or a folder of packages for another machine; None:
    neither can be had.
    """
    python = find_python(plan.parsed_variant.python)
    target = None
    # A fresh one: installers keep what is there of the same version.
    place = folder / "env"
    if options.elsewhere and options.elsewhere.foreign:
        assert plan.base  # it is a container of this base
        glibc = catalog.debian_releases()[plan.base].glibc
        python = Path(sys.executable)
        target = Target(place, plan.parsed_variant.python, plan.machine, glibc)
        shutil.rmtree(place, ignore_errors=True)
    else:
        missing = other_platform([options.wheel.name] if options.wheel else options.filenames)
        if python is None or missing:
            # Not run is no failure: it says nothing about the wheel.
            version = plan.parsed_variant.python_version
            step.outcome = "not run"
            step.result = missing or f"no Python {version} on this machine"
            return None
        shutil.rmtree(place, ignore_errors=True)
        python = make_environment(place, python)
    log = folder / "install.log"
    line = workspace.watcher.line
    if source[:1] != ("--index-url",):
        # The user's configuration is left out, and this part of it not: what the group does not
        # have comes from the user's own index.
        source = ("--index-url", pip_index(), *source)
    install(python, requirement, target=target, source=source, log=log, timeout_s=600, line=line)
    step.result = f"{requirement} into a fresh {'folder' if target else 'environment'}"
    return place if target else python


def expectation(plan: Plan, options: SmokeOptions) -> Expectation:
    """Expectations of the installed wheel: the plan's promises, and the version of the file in
    hand.
    """
    if options.wheel:
        version = str(parse_wheel_name(options.wheel.name).version)
    else:
        version = plan.version
    cuda = str(plan.options["cuda"] or "none")
    test = recipe(plan.recipe).smoke
    if test.interface is None:  # nothing is known of such a package but what its recipe says
        imports = tuple(test.imports) or (plan.package.replace("-", "_"),)
        script = recipe_folder(plan.recipe) / test.script if test.script else None
        return Expectation(version=version, cuda=cuda, imports=imports, script=script)
    archs = [f"sm_{sm}" for sm in plan.verify.sass or ()] + [
        f"compute_{sm}" for sm in plan.verify.ptx
    ]
    return Expectation(
        version=version,
        cuda=cuda,
        archs=tuple(archs),
        quantized="fbgemm" if plan.env.get("USE_FBGEMM") == "1" else None,
        features=tuple(plan.features),
        gpu=options.gpu,
    )


def with_device_code(report: SmokeReport, wheel: Path | None) -> SmokeReport:
    """The report with what the wheel's own fat binaries hold, where the file is at hand."""
    if wheel is None:
        return report
    summaries = []
    for library in inspect(wheel, decoded=0).libraries:
        sass = sorted({sm for group in library.fatbins for sm in group.sass}, key=order)
        ptx = sorted({sm for group in library.fatbins for sm in group.ptx}, key=order)
        if sass or ptx:
            summaries.append(
                f"{library.path}: "
                f"{' '.join([f'sm_{n}' for n in sass] + [f'compute_{n}' for n in ptx])}"
            )
    return report.model_copy(
        update={"facts": {**report.facts, "fat binaries": "; ".join(summaries)[:4000] or "none"}}
    )


def keep_report(workspace: Workspace, plan: Plan, report: SmokeReport) -> str | None:
    """Puts a report, without what was printed, into the index beside the wheel's record; else why
    it could not.
    """
    try:
        store = open_store(workspace.index_url)
        group = json_key(plan.parsed_variant.group, canonicalize_name(plan.package))
        page = store.get(group)
        files = parse_page(page.data, group).files if page else ()
        file = next((file for file in files if serves_plan(file.filename, plan)), None)
        if file is None:
            return "the index has no record of the wheel"
        facts = {
            TESTED_AT: datetime.now(UTC).isoformat(timespec="seconds"),
            TESTED_WHEEL: file.hashes.sha256,
        }
        trimmed_report = report.model_copy(
            update={"output_tail": "", "facts": {**report.facts, **facts}}
        )
        data = trimmed_report.to_json().encode()
        key = hashlib.sha256(data).hexdigest()[:16]
        store.create(f"{SMOKE}{file.filename}/{key}.json", data, content_type="application/json")
    except FarmError as error:
        return str(error)
    return None


def serves_plan(filename: str, plan: Plan) -> bool:
    """True if this is the name of the plan's wheel: its version, for its Python and system."""
    _, version, _, tags = parse_wheel_filename(filename)
    if version != Version(plan.version):
        return False
    python = plan.parsed_variant.python
    return any(
        serves(tag.interpreter, tag.abi, python)
        and (system := of_tag(tag.platform)) is not None
        and system.name == plan.platform
        for tag in tags
    )


def smoke_summary(report: SmokeReport) -> str:
    """`12 passed; GPU not run: no NVIDIA driver`."""
    if report.outcome == "not_run":
        return str(report.reason)
    counts: dict[str, int] = {}
    for check in report.checks:
        counts[check.status] = counts.get(check.status, 0) + 1
    parts = [f"{counts[s]} {s.replace('_', ' ')}" for s in ("passed", "failed") if counts.get(s)]
    reasons = {check.reason: check.group for check in report.checks if check.status == "not_run"}
    parts += [f"{group} not run: {reason}" for reason, group in reasons.items()]
    parts += [f"warning: {check.warning}" for check in report.checks if check.warning]
    return "; ".join(parts)


MAX_OUTPUT = 64 << 20
START = 'mkdir -p /farm/out; exec python3 -X faulthandler "$0" "$@"'
PACKAGES = {"PYTHONPATH": "/farm/site", "PYTHONNOUSERSITE": "1"}
"""For the processes that the probe starts too; the image's own packages come after them."""


def probe_job(
    workspace: Workspace,
    plan: Plan,
    elsewhere: Elsewhere,
    place: Path,
    expect: Expectation,
    run: str,
    emulate: str | None = None,
) -> SmokeReport:
    """The report of the probe as a job elsewhere, with the packages of `place`; `emulate`: qemu's
    CPU model.
    """
    engine = elsewhere.engine
    gpus = 0 if elsewhere.foreign else 1
    if elsewhere.foreign:
        site = place
    else:
        site = next(place.parents[1].glob("lib/python*/site-packages"))
    folder = workspace.run_folder(run)
    test = folder / "smoke-job"
    out = folder / "smoke-out"
    test.mkdir(exist_ok=True)
    (test / "probe.pyz").write_bytes(pack(PROBE))
    if expect.script is not None:
        (test / "script.py").write_bytes(expect.script.read_bytes())
        expect = replace(expect, script=Path("/farm/test/script.py"))
    limit = float(workspace.settings.smoke_timeout_s)
    file = Path("/farm/out/report.json")
    options = arguments(plan.package, expect, file, timeout_s=limit, cpu_only=not gpus)
    job = Job(
        name=f"smoke {plan.package}-{plan.variant}",
        image=elsewhere.image,
        command=("sh", "-c", START, "/farm/test/probe.pyz", *options),
        inputs={"/farm/test": test, "/farm/site": site},
        output="/farm/out",
        environment=PACKAGES | ({"QEMU_CPU": emulate} if emulate else {}),
        limits=engine.capacity(),
        timeout_s=int(limit + GRACE_S),
        labels={"farm.run": run, "farm.kind": "smoke"},
        gpus=gpus,
    )
    begun = time.monotonic()
    with completed(engine, job) as (handle, log, observed):
        if observed.cause is Cause.NOT_STARTED:
            raise NoRunnerError(
                str(observed.text), hint="choose other nodes with slurm.smoke in ci/farm.yaml"
            )
        if observed.state != "done":
            raise InfrastructureError(
                f"the smoke job was {observed.state}: {observed.text}", hint="run it again"
            )
        files = engine.collect(handle, out, MAX_OUTPUT)
    document = next(
        (read_document(file) for file in files if file.name == "report.json"),
        "the probe left no report",
    )
    code = observed.exit_code or 0
    ended = Ended(
        # A shell's number for a signal, which Popen gives as a negative one.
        128 - code if code > 128 else code,
        f"did not finish in {limit:g} s" if observed.cause is Cause.TIME_LIMIT else None,
        plain_lines(log[-TAIL_BYTES:].decode("utf-8", "replace")),
        time.monotonic() - begun,
    )
    return judge(plan.package, emulate, ended, document, expect)
