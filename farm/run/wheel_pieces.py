"""A wheel that a bundle's `run` built on another machine, given back in pieces: joined, with the libraries it needs."""

import hashlib
from pathlib import Path

from pydantic import Field, ValidationError

from farm.base.errors import BuildFailedError, UsageError
from farm.base.yamlfile import Model
from farm.engines.base import Engine, Job
from farm.plan.file import Plan, Sha256
from farm.run.short_job import run_to_end

MAX_WHEEL = 8 << 30
MAX_RESULT = 1 << 16
MAX_LIBRARIES = 16 << 30
COLLECT_TIMEOUT_S = 3600


class Result(Model):
    """`result.json` beside the pieces: `size` in bytes; `plan` is the digest of the plan that was built."""

    wheel: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,200}\.whl$")
    size: int = Field(gt=0, le=MAX_WHEEL)
    sha256: Sha256
    pieces: int = Field(gt=0, le=10_000)
    plan: Sha256


def join(plan: Plan, pieces: Path, dest: Path) -> Path:
    """The wheel in `dest`, from `result.json` and `piece-00`, `piece-01`, … in `pieces`.

    Raises:
        UsageError: Pieces are missing, are of another plan, or are damaged; `dest` holds no wheel then.
    """
    try:
        with (pieces / "result.json").open("rb") as stream:
            result = Result.model_validate_json(stream.read(MAX_RESULT))
    except OSError as error:
        raise UsageError(
            f"{error.filename}: {error.strerror}", hint="name the folder that `run --out` filled"
        ) from error
    except ValidationError as error:
        raise UsageError(f"{pieces / 'result.json'} is not what a bundle's run writes") from error
    # First of all: pieces of another plan would make a whole wheel, and the wrong one.
    if result.plan != plan.digest:
        raise UsageError(
            f"{pieces} holds a build of plan {result.plan[:12]}, this is plan {plan.digest[:12]}",
            hint="give the selectors that the bundle was rendered with, in the checkout that rendered it",
        )
    files = [pieces / f"piece-{number:02d}" for number in range(result.pieces)]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise UsageError(f"{pieces} lacks {', '.join(missing[:5])}", hint="call `run` again with --first-piece")
    # Sizes before hashes: a piece that is still being copied is found at once.
    if sum(path.stat().st_size for path in files) != result.size:
        raise UsageError(f"the pieces in {pieces} are not {result.size} bytes together", hint="copy them again")
    dest.mkdir(parents=True, exist_ok=True)
    wheel, total = dest / result.wheel, hashlib.sha256()
    with wheel.open("wb") as target:
        for path in files:
            data = path.read_bytes()
            total.update(data)
            target.write(data)
    if total.hexdigest() != result.sha256:
        wheel.unlink()
        raise UsageError(f"the pieces in {pieces} do not make the wheel: its sha256 differs", hint="copy them again")
    return wheel


def collect_libraries(plan: Plan, engine: Engine, image: str, wheel: Path, dest: Path, *, run: str) -> None:
    """Put the libraries that the wheel needs into `dest`: the bundle has stand-ins, the image the real ones.

    Raises:
        BuildFailedError: One of them is not in the image.
    """
    excluded = [word for pattern in plan.never_vendored for word in ("--exclude", pattern)]
    job = Job(
        name=f"libraries of {plan.package}-{plan.variant}",
        image=image,
        # The script that a build in a container runs as well: the same libraries, however the wheel was built.
        command=(
            "python3",
            "/farm/scripts/collect_libraries.py",
            *excluded,
            "/farm/built",
            "/farm/out/lib",
            *plan.opens,
        ),
        inputs={"/farm/built": wheel.parent},
        output="/farm/out",
        environment={},
        limits=engine.capacity(),
        timeout_s=COLLECT_TIMEOUT_S,
        labels={"farm.run": run, "farm.kind": "libraries"},
    )
    found = dest.with_name("found")
    try:
        run_to_end(engine, job, found, MAX_LIBRARIES)
        (found / "lib").rename(dest)
    except OSError as error:
        raise BuildFailedError(f"no library came out of {image}: {error.strerror}") from error
