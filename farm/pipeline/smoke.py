"""The wheel, installed from the index as a user would, put to the test here and on an emulated old CPU."""

import shutil
from collections.abc import Callable
from pathlib import Path

from farm.pipeline.report import Outcomes
from farm.pipeline.setting import Setting
from farm.plan import Plan
from farm.smoke.emulation import model_for
from farm.smoke.environment import find_python, install, make_environment
from farm.smoke.report import SmokeReport
from farm.smoke.runner import Expectation, run_probe
from farm.variant import Variant


def smoke(
    setting: Setting, plan: Plan, folder: Path, outcomes: Outcomes, requirement: str, source: tuple[str, ...]
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
        install(python, requirement, source=source, log=folder / "install.log", timeout_s=600)
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
