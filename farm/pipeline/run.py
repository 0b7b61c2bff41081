"""The main job: from a plan to a smoke-tested wheel in the index, every step in the journal.

A run whose controller was killed is found again by its plan: the container that still builds, or the wheel that
was collected, is taken up; the short steps after it are done again, since each is idempotent.
"""

import json
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Never

from farm import catalog
from farm.engines import images
from farm.engines.base import Engine
from farm.engines.docker import DockerEngine, connect
from farm.errors import BuildFailedError, FarmError, NoRunnerError, SmokeFailedError, VerificationFailedError
from farm.index.publish import PublishResult, publish
from farm.index.stores import open_store
from farm.pipeline import build
from farm.pipeline.report import Outcomes, Watcher
from farm.plan import Plan
from farm.render import render
from farm.runs import Attempt, Journal, Result, Run
from farm.settings import Settings, load_runners
from farm.smoke.emulation import model_for
from farm.smoke.environment import find_python, install, make_environment
from farm.smoke.report import SmokeReport
from farm.smoke.runner import Expectation, run_probe
from farm.variant import Variant
from farm.wheel.archive import Archive
from farm.wheel.metadata import read_dist_info
from farm.wheel.repair import repair
from farm.wheel.report import Report, VerifyPolicy
from farm.wheel.verify import verify

RUNNER = "local"
INTERRUPTED = 130
INFRASTRUCTURE = 9


@dataclass(frozen=True)
class Setting:
    """Where a run happens: the project, its settings, the folder of the run, and who watches."""

    project: Path
    settings: Settings
    watcher: Watcher

    @property
    def artifacts(self) -> Path:
        return self.project / self.settings.artifacts

    def run_folder(self, run_id: str) -> Path:
        return self.artifacts / "runs" / run_id

    @property
    def index_url(self) -> str:
        index = self.settings.index
        return index if "://" in index else str(self.project / index)


def open_journal(project: Path, settings: Settings) -> Journal:
    folder = project / settings.artifacts
    folder.mkdir(parents=True, exist_ok=True)
    return Journal(folder / "farm.db")


def submit(
    setting: Setting, plan: Plan, *, selectors: Mapping[str, Any], with_publish: bool = True, with_smoke: bool = True
) -> Outcomes:
    """Do everything for one plan; the journal keeps what happened whatever happens.

    Raises:
        FarmError: A step failed; the class says which, the text says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the container was removed.
    """
    outcomes = Outcomes()
    with open_journal(setting.project, setting.settings) as journal:
        run = _take_up(journal, plan) or journal.create_run(plan.digest, selectors, json.loads(plan.to_json()))
        outcomes.run = run.id
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            _steps(setting, plan, journal, run, outcomes, with_publish=with_publish, with_smoke=with_smoke)
        except FarmError as error:
            result: Result = "infra" if error.exit_code in (NoRunnerError.exit_code, INFRASTRUCTURE) else "failure"
            journal.event(run.id, "error", text=str(error)[:8000], hint=error.hint)
            journal.finish_run(run.id, result, error.exit_code)
            raise
        except KeyboardInterrupt:
            journal.finish_run(run.id, "infra", INTERRUPTED)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
            for step in outcomes.steps:
                journal.event(
                    run.id, "step", name=step.name, seconds=round(step.seconds, 3), outcome=step.outcome,
                    result=step.result,
                )  # fmt: skip
        journal.finish_run(run.id, "success", 0)
    return outcomes


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _take_up(journal: Journal, plan: Plan) -> Run | None:
    """The run of a killed controller with the same plan, now ours."""
    run = journal.unfinished(plan.digest)
    return run if run is not None and journal.claim(run.id) else None


def _steps(
    setting: Setting,
    plan: Plan,
    journal: Journal,
    run: Run,
    outcomes: Outcomes,
    *,
    with_publish: bool,
    with_smoke: bool,
) -> None:
    folder = setting.run_folder(run.id)
    watcher = setting.watcher
    folder.mkdir(parents=True, exist_ok=True)
    built = _build(setting, plan, journal, run, outcomes)
    with outcomes.timed("repair", watcher) as step:
        fixed = folder / "repaired"
        shutil.rmtree(fixed, ignore_errors=True)
        fixed.mkdir()
        result = repair(
            build.the_wheel(built / "wheel"),
            fixed,
            lib_dirs=[built / "lib"],
            vendor_into=plan.vendor_into,
            exclude=plan.exclude,
            version=plan.version,
        )
        vendored = ", ".join(Path(item.path).name for item in result.vendored) or "nothing"
        step.result = f"added {vendored}; {result.tags[0]}"
        outcomes.wheel = str(result.wheel)
    with outcomes.timed("verify", watcher) as step:
        report = check_wheel(result.wheel, plan, folder / "verify.json")
        step.result = summary(report)
    if not with_publish:
        return
    with outcomes.timed("publish", watcher) as step:
        published = publish_wheel(setting, plan, result.wheel, report)
        step.result = ("published" if published.changed else "already there") + f": {published.index_url}"
    requirement = f"{plan.package}=={plan.version}"
    outcomes.pip_line = f"pip install {requirement} --index-url {published.index_url}"
    if with_smoke:
        _smoke(setting, plan, journal, run, outcomes, requirement, published.index_url)


def _build(setting: Setting, plan: Plan, journal: Journal, run: Run, outcomes: Outcomes) -> Path:
    """The folder with what the build left: `wheel/` and `lib/`."""
    watcher, folder = setting.watcher, setting.run_folder(run.id)
    done = folder / "built"
    job = next((job for job in journal.jobs(run.id) if job.kind == "build"), None) or journal.create_job(
        run.id, "build"
    )
    if done.is_dir():
        with outcomes.timed("build", watcher) as step:
            step.result = "taken up: the wheel was collected before"
        return done
    engine, image = _engine_and_image(setting, plan, run, outcomes)
    with outcomes.timed("build", watcher) as step:
        last = job.attempts[-1] if job.attempts else None
        if last and last.handle and engine.observe(last.handle).state in ("running", "done"):
            step.result = "taken up; "
            attempt, handle = last, last.handle
        else:
            attempt = journal.create_attempt(job.id, engine.name, RUNNER)
            handle = _start(setting, plan, journal, run, engine, image, attempt)
        try:
            _finish_build(journal, engine, attempt, handle, done, folder / "build.log", watcher)
        except KeyboardInterrupt:
            engine.cancel(handle)
            journal.set_state(attempt.id, "cancelled", why="interrupted")
            engine.release(handle)
            raise
        wheel = build.the_wheel(done / "wheel")
        step.result += f"{wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB)"
    return done


def _engine_and_image(setting: Setting, plan: Plan, run: Run, outcomes: Outcomes) -> tuple[DockerEngine, str]:
    watcher, folder, settings = setting.watcher, setting.run_folder(run.id), setting.settings
    rendered = render(setting.project, plan)
    with outcomes.timed("render", watcher) as step:
        files = rendered.write(folder / "context")
        step.result = f"{len(files)} files in {(folder / 'context').relative_to(setting.project)}"
    runner = load_runners(setting.project)[RUNNER]
    client = connect(runner.url)
    memory = int(runner.memory_gb * 1e9) if runner.memory_gb else None
    with outcomes.timed("image", watcher) as step:
        base = images.base_image(
            client,
            plan.base,
            catalog.debian_releases()[plan.base],
            pull_timeout_s=settings.pull_timeout_s,
            mirror=settings.debian_mirror,
            line=watcher.line,
        )
        image = images.ensure_image(
            client,
            repository="farm/toolchain",
            context=rendered.image,
            context_digest=rendered.image_digest,
            base=base,
            labels={"farm.base": plan.base, "farm.channel": plan.channel},
            log=folder / "image.log",
            line=watcher.line,
        )
        step.result = f"{image.tag}, {'reused' if image.reused else 'built'}"
    return DockerEngine(client, cpus=runner.cpus, memory=memory), image.tag


def _start(
    setting: Setting, plan: Plan, journal: Journal, run: Run, engine: Engine, image: str, attempt: Attempt
) -> str:
    folder = setting.run_folder(run.id)
    with build.source_tree(plan, setting.artifacts / "sources", setting.watcher) as source:
        job = build.make_job(
            plan,
            image=image,
            context=folder / "context" / "job",
            source=source,
            capacity=engine.capacity(),
            labels={"farm.run": run.id, "farm.kind": "build"},
        )
        journal.set_state(attempt.id, "starting")
        handle = engine.submit(job)
    journal.set_handle(attempt.id, handle)
    journal.set_state(attempt.id, "running")
    return handle


def _finish_build(
    journal: Journal, engine: Engine, attempt: Attempt, handle: str, done: Path, log: Path, watcher: Watcher
) -> None:
    """Follow the container to its end and take the wheel; the container is gone afterwards, whatever came."""
    seen = build.follow(engine, handle, log, watcher)
    try:
        build.judge(seen, log)
        part = done.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        engine.collect(handle, part, build.MAX_OUTPUT)
        part.rename(done)
        journal.set_state(attempt.id, "done", "success")
    except BuildFailedError as error:
        journal.set_state(attempt.id, "done", "failure", why=str(error))
        raise
    except FarmError as error:
        journal.set_state(attempt.id, "lost", "infra", why=str(error))
        raise
    finally:
        engine.release(handle)


def policy_of(plan: Plan) -> VerifyPolicy:
    """What the wheel of a plan promises."""
    promise = plan.verify
    return VerifyPolicy(
        name=plan.package,
        version=plan.version,
        python=promise.python_tag,
        platform=f"{plan.platform}_{Variant.parse(plan.variant).machine}",
        sass=tuple(promise.sass),
        ptx=tuple(promise.ptx),
        cpu=promise.cpu,
        cpu_exempt=tuple(promise.cpu_exempt),
        exclude=tuple(promise.exclude),
    )


def check_wheel(wheel: Path, plan: Plan, report_file: Path) -> Report:
    """Verify a wheel against its plan and leave the report in `report_file`.

    Raises:
        VerificationFailedError: It does not hold what it promises; every finding is in the text.
    """
    report = verify(wheel, policy_of(plan))
    report_file.write_text(json.dumps(report.to_json(), indent=1) + "\n")
    if not report.passed:
        raise refusal(report, report_file)
    return report


def refusal(report: Report, report_file: Path | None = None) -> VerificationFailedError:
    """The error that says everything that a report found."""
    lines = [f"  - {f.where}: {f.what}\n    why: {f.why}\n    fix: {f.fix}" for f in report.findings]
    return VerificationFailedError(
        f"{report.wheel} does not hold what its name promises:\n" + "\n".join(lines),
        hint=f"the whole report: {report_file}" if report_file else None,
    )


def summary(report: Report) -> str:
    """`archive, names, record … passed`, and what was not run."""
    by_status: dict[str, list[str]] = {}
    for check in report.checks:
        by_status.setdefault(check.status.replace("_", " "), []).append(check.id)
    return "; ".join(f"{', '.join(ids)} {status}" for status, ids in by_status.items())


def publish_wheel(setting: Setting, plan: Plan, wheel: Path, report: Report) -> PublishResult:
    """Publish a verified wheel into the group of its variant."""
    with Archive(wheel) as archive:
        metadata = archive.read(f"{read_dist_info(archive).folder}/METADATA")
    return publish(
        open_store(setting.index_url),
        wheel,
        group=Variant.parse(plan.variant).group,
        metadata=metadata,
        upload_time=datetime.now(UTC),
        provenance={"plan": plan.digest, "verified": report.sha256, "channel": plan.channel},
    )


def _smoke(
    setting: Setting, plan: Plan, journal: Journal, run: Run, outcomes: Outcomes, requirement: str, index_url: str
) -> None:
    job = journal.create_job(run.id, "smoke")
    attempt = journal.create_attempt(job.id, "host", RUNNER)
    journal.set_state(attempt.id, "running")
    try:
        failed = smoke(setting, plan, setting.run_folder(run.id), outcomes, requirement, index_url)
    except FarmError as error:
        journal.set_state(attempt.id, "done", "failure", why=str(error))
        raise
    except BaseException:
        journal.set_state(attempt.id, "cancelled", why="interrupted")
        raise
    journal.set_state(attempt.id, "done", "failure" if failed else "success")
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {setting.run_folder(run.id)}/smoke*.json")


def smoke(
    setting: Setting, plan: Plan, folder: Path, outcomes: Outcomes, requirement: str, index_url: str
) -> list[str]:
    """Install from the index into a fresh environment and run the probe, here and on the emulated CPU.

    Returns what failed, in words; reports are left in `folder`.
    """
    watcher, variant = setting.watcher, Variant.parse(plan.variant)
    python = find_python(variant.python)
    if python is None:
        with outcomes.timed("install", watcher) as step:
            step.outcome, step.result = "not run", f"no Python {variant.python_version} on this machine"
        return []
    with outcomes.timed("install", watcher) as step:
        shutil.rmtree(folder / "env", ignore_errors=True)
        python = make_environment(folder / "env", python)
        install(python, requirement, index_url=index_url, log=folder / "install.log", timeout_s=600)
        step.result = f"{requirement} into a fresh environment"
    archs = [f"sm_{sm}" for sm in plan.verify.sass] + [f"compute_{sm}" for sm in plan.verify.ptx]
    expect = Expectation(version=plan.version, cuda=plan.options["cuda"] or "none", archs=tuple(archs))  # type: ignore[arg-type]
    run: Callable[[str | None], SmokeReport] = lambda model: run_probe(  # noqa: E731
        python, module=plan.package, expect=expect, timeout_s=setting.settings.smoke_timeout_s, emulate=model
    )
    failed = []
    model = model_for(variant.cpu)
    for name, emulate in (("smoke", None), (f"smoke ({model.name or variant.cpu})", model.name)):
        with outcomes.timed(name, watcher) as step:
            if name != "smoke" and emulate is None:
                step.outcome, step.result = "not run", str(model.reason)
                continue
            report = run(emulate)
            (folder / f"smoke{'-' + emulate if emulate else ''}.json").write_text(report.to_json())
            step.result = smoke_summary(report)
            if report.outcome == "not_run":
                step.outcome = "not run"
            if report.outcome == "failed":
                failed.append(f"{name} failed: {report.reason}")
    return failed


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
    return "; ".join(parts)
