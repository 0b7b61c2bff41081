"""The command line of a bundle's `run`: its build is a job of the farm's host engine, which comes along."""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import math
import os
import re
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.base import enter
from farm.base.errors import FarmError
from farm.base.locks import lock
from farm.base.processes import machine
from farm.engines.base import Job
from farm.engines.host import HostEngine

from .unpack import AGAIN, CANNOT, EXIT_CODES, FAILED, INTERRUPTED, leave, look_for, make_folder, place, say, unpack

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


PROGRESS_S = 15  # between two lines of progress
NINJA = re.compile(rb"^\[([0-9]{1,6})/([0-9]{1,6})\]", re.MULTILINE)
SHOWN, WIDTH = 24, 400  # lines of a failure, and characters of each: a compiler's command line has thousands


def steps(log: Path) -> Iterator[tuple[int, int]]:
    """How far ninja is, as its log says; the last entry is the newest."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - (1 << 18)))
        for match in NINJA.finditer(stream.read()):
            yield int(match[1]), int(match[2])


def failure(log: Path) -> str:
    """Where Ninja's first step failed, and what it printed; the log's last lines where no step is named."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - (4 << 20)))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    failed = next((i for i, line in enumerate(lines) if line.startswith("FAILED: ")), None)
    shown = lines[-SHOWN:]
    if failed is not None:
        # The step's own lines end where the next step reports.
        end = next((i for i in range(failed, len(lines)) if lines[i].startswith(("[", "ninja: "))), len(lines))
        shown = lines[failed:end][:SHOWN]
    return "\n".join(line if len(line) <= WIDTH else line[:WIDTH] + " …" for line in shown)


def build(manifest: dict[str, Any], state: Path, args: argparse.Namespace) -> Path:
    """Start the build or join one that runs, and follow it; returns the folder with its output."""
    jobs = args.jobs or os.cpu_count() or 1
    # Half as much again as the jobs are planned with, where no one says what the machine has to give.
    memory = int((args.memory_gb or jobs * manifest["job"]["memory_per_job_gb"] * 1.5) * 1e9)
    engine = HostEngine(state / "root", tree=True, cpus=jobs, memory=memory)
    with (state / "lock").open("ab") as file:  # two calls at the same moment start one build
        lock(file.fileno(), wait=True)
        handle = start(engine, manifest, state, args)
    log = state / "root/farm-jobs" / handle / "log"
    follow(engine, handle, log, args.wait_s)
    now = engine.observe(handle)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        # Also while the build runs: whoever carries it out of a machine that is cut off can read how far it is.
        (args.out / "build.log.xz").write_bytes(lzma.compress(log.read_bytes(), preset=1))
    if now.state in ("starting", "running"):
        leave(AGAIN, "the build is still running", "call again to follow it")
    if now.state != "done":
        leave(AGAIN, f"the build was {now.state}: {now.text}", "call again to continue")
    if now.exit_code:
        why = f"the build failed with exit code {now.exit_code} ({now.text or 'its own'}):\n{failure(log)}\nlog: {log}"
        leave(FAILED, why, "fix the cause, then call again with --retry: what was compiled is kept")
    return state / "root" / str(manifest["job"]["output"]).lstrip("/")


def start(engine: HostEngine, manifest: dict[str, Any], state: Path, args: argparse.Namespace) -> str:
    """The handle of the plan's job: of one that runs or has ended well, else of a new one."""
    job, labels = manifest["job"], {"farm.plan": manifest["plan"]}
    # By the plan: a call that is repeated finds the build of the one before.
    handle = engine.find(labels)
    before = engine.observe(handle) if handle else None
    failed = before is not None and before.state == "done" and before.exit_code
    if handle and before and before.state not in ("lost", "cancelled") and not (args.retry and failed):
        return handle
    if handle:
        engine.release(handle)  # also what a killed supervisor left, before the tree below it is made anew
    unpack(manifest, args.parts, state)
    capacity = engine.capacity()
    say(f"building with {capacity.cpus:.0f} jobs" + (f" (before: {before.text or before.state})" if before else ""))
    return engine.submit(
        Job(
            name=manifest["name"],
            image="",
            command=tuple(job["command"]),
            inputs={target: state / name for target, name in job["inputs"].items()},
            output=job["output"],
            environment={**job["environment"], "FARM_JOBS": f"{capacity.cpus:.0f}"},
            limits=capacity,
            timeout_s=job["timeout_s"],
            labels=labels,
            volumes=job["volumes"],
        )
    )


def follow(engine: HostEngine, handle: str, log: Path, wait_s: float | None) -> None:
    """Print progress until the build ends or `wait_s` seconds are over."""
    deadline, printed, first = time.monotonic() + (math.inf if wait_s is None else wait_s), 0.0, None
    while engine.observe(handle).state in ("starting", "running") and time.monotonic() < deadline:
        now = time.monotonic()
        if now - printed > PROGRESS_S:
            printed = now
            reached = list(steps(log))[-1:]
            if reached:
                done, total = reached[0]
                first = first or (now, done)
                rate = (done - first[1]) / (now - first[0]) if now > first[0] else 0.0
                left = f", about {(total - done) / rate / 60:.0f} min left" if rate > 0 else ""
                say(f"[{done}/{total}] {rate * 60:.0f} steps a minute{left}")
            else:
                last = log.read_bytes()[-200:].decode("utf-8", "replace").strip().splitlines()
                say(last[-1] if last else "no output yet")
        time.sleep(0.5)


PIECE = 15 << 20


def write_pieces(manifest: dict[str, Any], output: Path, out: Path) -> None:
    """Write the pieces of one tar into `out`, and `result.json`, which says what they make."""
    wheels = sorted((output / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        leave(FAILED, f"the build left {len(wheels)} wheels, expected one")
    out.mkdir(parents=True, exist_ok=True)
    whole, total, pieces = output / "built.tar", hashlib.sha256(), 0
    with tarfile.open(whole, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in (*wheels, *sorted(each for each in (output / "lib").glob("*") if each.is_file())):
            archive.add(path, f"built/{path.relative_to(output).as_posix()}", recursive=False)
    with whole.open("rb") as stream:
        while data := stream.read(PIECE):
            (out / f"piece-{pieces:02d}").write_bytes(data)
            total.update(data)
            pieces += 1
    size = whole.stat().st_size
    whole.unlink()
    result = {"plan": manifest["plan"], "size": size, "sha256": total.hexdigest(), "pieces": pieces}
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    say(f"{wheels[0].name}: {pieces} pieces in {out}; give that folder to `farm submit --from-bundle`")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="run",
        description="Builds a plan from a bundle, without network, Docker or root, and follows the build to its end.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--parts", type=Path, action="append", default=[], help="where parts are (default: beside run)")
    made.add_argument("--state", type=Path, help="where to unpack and build (default: work-<plan> beside run)")
    made.add_argument("--jobs", type=int, help="compiles at a time (default: the CPUs)")
    made.add_argument("--memory-gb", type=float, help="memory limit of the build (default: from the number of jobs)")
    made.add_argument("--wait-s", type=float, help="how long to follow the build in this call (default: to its end)")
    made.add_argument("--out", type=Path, help="where the log and the pieces of the result go")
    made.add_argument("--retry", action="store_true", help="build again after a build that failed")
    made.add_argument("--check", action="store_true", help="say whether this machine can build it; unpack nothing")
    return made


def main() -> int:
    args = parser().parse_args()
    here = Path(sys.argv[0]).resolve().parent  # of the packed file: the manifest and the parts are beside it
    manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    refused = enter.refusal()
    if refused:
        leave(CANNOT, *refused)
    folder = place(args.state, here, manifest["plan"])
    args.parts = args.parts or [here]
    if args.check:
        return check(manifest, args.parts, folder)
    folder = make_folder(folder)
    try:
        output = build(manifest, folder, args)
    except FarmError as error:
        leave(CANNOT, str(error), error.hint)
    except KeyboardInterrupt:
        leave(INTERRUPTED, "interrupted; a build that was started goes on: call again to follow it")
    if args.out:
        write_pieces(manifest, output, args.out)
    else:
        say(f"done: {output}")
    return 0


def check(manifest: dict[str, object], folders: list[Path], folder: Path) -> int:
    """Print what this machine has for the build; 0 where all is there."""
    cpus, memory = machine()
    above = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(above).free
    say(f"{cpus:.0f} CPUs, {memory / 1e9:.1f} GB of memory, {free / 1e9:.0f} GB free for {folder}")
    say("the toolchain can be entered " + ("as root" if os.geteuid() == 0 else "in a user namespace, without root"))
    found, missing = look_for(manifest, folders)
    if missing:
        leave(AGAIN, f"{len(found)} parts are here; missing: {', '.join(missing)}", "copy them here and call again")
    say(f"all {len(found)} parts are here; this machine can build {manifest['name']}")
    return 0
