"""The smoke step: installs the wheel from the index as a user would; runs the probe here and on an
emulated CPU.
"""

import hashlib
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable
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
from farm.index.pages import File, parse_page
from farm.index.store_urls import open_store
from farm.index.stores import Store
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
    ProbeDocument,
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
    with outcomes.timed("install", workspace.watcher) as step:
        place = _install(workspace, plan, folder, step, requirement, source, options)
    if place is None:
        return []
    expect = expectation(plan, options)
    probe = _Probe(workspace, plan, place, expect, outcomes.run, options)
    failures = []
    is_kept = False
    for name, emulate in _tests(plan, options.elsewhere):
        with outcomes.timed(name, workspace.watcher) as step:
            if name != "smoke" and emulate is None:
                step.outcome = "not run"
                step.result = str(model_for(plan.parsed_variant.cpu).reason)
                continue
            report = with_device_code(probe.report(emulate), options.wheel)
            (folder / _report_name(emulate)).write_text(report.to_json(), encoding="utf-8")
            step.result = smoke_summary(report)
            if options.keep and report.outcome != "not_run":
                problem = keep_report(workspace, plan, report)
                if problem is None:
                    is_kept = True
                else:
                    step.result += f"; not kept in the index: {problem}"
            if report.outcome == "not_run":
                step.outcome = "not run"
            if report.outcome == "failed":
                step.outcome = "failed"
                failures.append(f"{name} failed: {_why_failed(report)}")
    if is_kept:
        refresh_site(workspace, {canonicalize_name(plan.package)})
    if options.keep and not failures:
        _mark_passed(workspace, plan, outcomes)
    return failures


def _tests(plan: Plan, elsewhere: Elsewhere | None) -> list[tuple[str, str | None]]:
    """The name of each test, and qemu's CPU model where it is emulated."""
    level = plan.parsed_variant.cpu
    model = model_for(level)
    native: tuple[str, str | None] = ("smoke", None)
    emulated = (f"smoke ({model.name or level})", model.name)
    if elsewhere is None or not elsewhere.foreign:
        return [native, emulated]
    # It is one CPU, its own or an emulated one.
    if elsewhere.emulated:
        return [emulated]
    return [native]


@dataclass(frozen=True)
class _Probe:
    """The probe with what it is given; `place`: see `_install`."""

    workspace: Workspace
    plan: Plan
    place: Path
    expect: Expectation
    run: str
    options: SmokeOptions

    def report(self, emulate: str | None) -> SmokeReport:
        """Run it, here or as a job elsewhere; `emulate`: qemu's CPU model."""
        elsewhere = self.options.elsewhere
        if elsewhere and (elsewhere.foreign or emulate is None):
            return probe_job(
                self.workspace, self.plan, elsewhere, self.place, self.expect, self.run, emulate
            )
        return run_probe(
            self.place,
            module=self.plan.package,
            expect=self.expect,
            timeout_s=self.workspace.settings.smoke_timeout_s,
            emulate=emulate,
            line=self.workspace.watcher.note,
            passed=self.options.passed,
        )


def _report_name(emulate: str | None) -> str:
    """Names tell the CPUs apart."""
    if emulate:
        return f"smoke-{emulate}.json"
    return "smoke.json"


def _why_failed(report: SmokeReport) -> str:
    lines = [str(report.reason)]
    for cause in report.causes:
        lines.append(f"    why: {cause.what}")
        lines.append(f"    fix: {cause.fix}")
    return "\n".join(lines)


def _mark_passed(workspace: Workspace, plan: Plan, outcomes: Outcomes) -> None:
    """Note that the wheel has passed its test, if that ran.

    A run succeeds as well where this machine has no Python for the wheel, or too old a glibc.
    """
    for step in outcomes.steps:
        if step.name == "smoke" and step.outcome == "done":
            mark = passed_mark(workspace, plan)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            return


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
        filenames = options.filenames
        if options.wheel:
            filenames = (options.wheel.name,)
        missing = other_platform(filenames)
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
    if target:
        step.result = f"{requirement} into a fresh folder"
        return place
    step.result = f"{requirement} into a fresh environment"
    return python


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
        script = None
        if test.script:
            script = recipe_folder(plan.recipe) / test.script
        return Expectation(version=version, cuda=cuda, imports=imports, script=script)
    quantized = None
    if plan.env.get("USE_FBGEMM") == "1":
        quantized = "fbgemm"
    return Expectation(
        version=version,
        cuda=cuda,
        archs=tuple(_architectures(plan.verify.sass or (), plan.verify.ptx)),
        quantized=quantized,
        features=tuple(plan.features),
        gpu=options.gpu,
    )


def _architectures(sass: Iterable[int | str], ptx: Iterable[int | str]) -> list[str]:
    """Names of code for cards, as nvcc writes them: `sm_35` for machine code, `compute_35` for
    PTX.
    """
    return [f"sm_{number}" for number in sass] + [f"compute_{number}" for number in ptx]


def with_device_code(report: SmokeReport, wheel: Path | None) -> SmokeReport:
    """The report with what the wheel's own fat binaries hold, where the file is at hand."""
    if wheel is None:
        return report
    summaries = []
    for library in inspect(wheel, decoded=0).libraries:
        sass = set[int | str]()
        ptx = set[int | str]()
        for group in library.fatbins:
            sass.update(group.sass)
            ptx.update(group.ptx)
        if sass or ptx:
            names = _architectures(sorted(sass, key=order), sorted(ptx, key=order))
            summaries.append(f"{library.path}: {' '.join(names)}")
    text = "; ".join(summaries)[:MAX_FACT]
    return _with_facts(report, {"fat binaries": text or "none"})


def _with_facts(report: SmokeReport, facts: dict[str, str], **changes: str) -> SmokeReport:
    return report.model_copy(update={**changes, "facts": {**report.facts, **facts}})


def keep_report(workspace: Workspace, plan: Plan, report: SmokeReport) -> str | None:
    """Puts a report, without what was printed, into the index beside the wheel's record; else why
    it could not.
    """
    try:
        store = open_store(workspace.index_url)
        file = _published_file(store, plan)
        if file is None:
            return "the index has no record of the wheel"
        facts = {
            TESTED_AT: datetime.now(UTC).isoformat(timespec="seconds"),
            TESTED_WHEEL: file.hashes.sha256,
        }
        data = _with_facts(report, facts, output_tail="").to_json().encode()
        key = hashlib.sha256(data).hexdigest()[:16]
        store.create(f"{SMOKE}{file.filename}/{key}.json", data, content_type="application/json")
    except FarmError as error:
        return str(error)
    return None


def _published_file(store: Store, plan: Plan) -> File | None:
    """The plan's wheel by the page of its package."""
    key = json_key(plan.parsed_variant.group, canonicalize_name(plan.package))
    page = store.get(key)
    if page is None:
        return None
    for file in parse_page(page.data, key).files:
        if serves_plan(file.filename, plan):
            return file
    return None


def serves_plan(filename: str, plan: Plan) -> bool:
    """True if this is the name of the plan's wheel: its version, for its Python and system."""
    _, version, _, tags = parse_wheel_filename(filename)
    if version != Version(plan.version):
        return False
    python = plan.parsed_variant.python
    for tag in tags:
        system = of_tag(tag.platform)
        if system is None or system.name != plan.platform:
            continue
        if serves(tag.interpreter, tag.abi, python):
            return True
    return False


def smoke_summary(report: SmokeReport) -> str:
    """`12 passed; GPU not run: no NVIDIA driver`."""
    if report.outcome == "not_run":
        return str(report.reason)
    counts = Counter(check.status for check in report.checks)
    parts = []
    if counts["passed"]:
        parts.append(f"{counts['passed']} passed")
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    reasons = {check.reason: check.group for check in report.checks if check.status == "not_run"}
    parts += [f"{group} not run: {reason}" for reason, group in reasons.items()]
    parts += [f"warning: {check.warning}" for check in report.checks if check.warning]
    return "; ".join(parts)


MAX_OUTPUT = 64 << 20
MAX_FACT = 4000  # characters of one fact of a report
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
    if elsewhere.foreign:
        gpus = 0
        site = place
    else:
        gpus = 1
        site = next(place.parents[1].glob("lib/python*/site-packages"))
    environment = dict(PACKAGES)
    if emulate:
        environment["QEMU_CPU"] = emulate
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
        environment=environment,
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
    code = observed.exit_code or 0
    if code > 128:  # a shell's number for a signal, which Popen gives as a negative one
        code = 128 - code
    stopped = None
    if observed.cause is Cause.TIME_LIMIT:
        stopped = f"did not finish in {limit:g} s"
    output = plain_lines(log[-TAIL_BYTES:].decode("utf-8", "replace"))
    ended = Ended(code, stopped, output, time.monotonic() - begun)
    return judge(plan.package, emulate, ended, _document_in(files), expect)


def _document_in(files: Iterable[Path]) -> ProbeDocument | str:
    for file in files:
        if file.name == "report.json":
            return read_document(file)
    return "the probe left no report"
