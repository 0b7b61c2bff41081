"""The probe as a job of an engine, in the toolchain: on a node with the card and its driver, or on another machine."""

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from farm.base.errors import InfrastructureError, NoRunnerError
from farm.base.interrupts import held
from farm.base.zipapps import pack
from farm.engines.base import Cause, Job
from farm.plan.file import Plan
from farm.run.backends import Backend
from farm.run.workspace import Workspace
from farm.smoke.report import SmokeReport, read_document
from farm.smoke.runner import GRACE_S, PROBE, TAIL_BYTES, Expectation, arguments, judge

MAX_OUTPUT = 64 << 20
PROGRAM = """
import runpy, site, sys
site.addsitedir("/farm/site")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""`-I` leaves PYTHONPATH out, as it should: the wheel's folder is added here."""
START = 'mkdir -p /farm/out; exec python3 -I -X faulthandler -c "$0" "$@"'


def probe_job(
    workspace: Workspace,
    plan: Plan,
    backend: Backend,
    image: str,
    site: Path,
    expect: Expectation,
    run: str,
    *,
    gpus: int = 0,
    emulate: str | None = None,
) -> SmokeReport:
    """The report of the probe, run in `image` with the installed packages of `site`.

    `emulate`: the CPU model of qemu, which runs all programs of the image there.

    Raises:
        NoRunnerError: The node cannot enter the toolchain, or Slurm takes no such job.
        InfrastructureError: The job was lost.
    """
    engine = backend.engine
    folder = workspace.run_folder(run)
    test, out = folder / "smoke-job", folder / "smoke-out"
    test.mkdir(exist_ok=True)
    (test / "probe.pyz").write_bytes(pack(PROBE))
    if expect.script is not None:
        (test / "script.py").write_bytes(expect.script.read_bytes())
        expect = replace(expect, script=Path("/farm/test/script.py"))
    limit = float(workspace.settings.smoke_timeout_s)
    file = Path("/farm/out/report.json")
    options = arguments(plan.package, expect, file, timeout_s=limit, check_s=limit, cpu_only=not gpus)
    job = Job(
        name=f"smoke {plan.package}-{plan.variant}",
        image=image,
        command=("sh", "-c", START, PROGRAM, "/farm/test/probe.pyz", *options),
        inputs={"/farm/test": test, "/farm/site": site},
        output="/farm/out",
        environment={"QEMU_CPU": emulate} if emulate else {},
        limits=engine.capacity(),
        timeout_s=int(limit + GRACE_S),
        labels={"farm.run": run, "farm.kind": "smoke"},
        gpus=gpus,
    )
    begun = time.monotonic()
    with ExitStack() as stack:
        with held():
            handle = engine.submit(job)
            stack.callback(engine.release, handle)
        log = b"".join(engine.logs(handle))
        observed = engine.observe(handle)
        if observed.cause is Cause.NOT_STARTED:
            raise NoRunnerError(str(observed.text), hint="choose other nodes with slurm.smoke in ci/farm.yaml")
        if observed.state != "done":
            raise InfrastructureError(f"the smoke job was {observed.state}: {observed.text}", hint="run it again")
        files = engine.collect(handle, out, MAX_OUTPUT)
    document = next((read_document(file) for file in files if file.name == "report.json"), "the probe left no report")
    code = observed.exit_code or 0
    return judge(
        plan.package,
        expect,
        document,
        emulate=emulate,
        # A shell's number for a signal, which Popen gives as a negative one.
        code=128 - code if code > 128 else code,
        late=f"did not finish in {limit:g} s" if observed.cause is Cause.TIME_LIMIT else None,
        tail=log[-TAIL_BYTES:],
        seconds=time.monotonic() - begun,
    )
