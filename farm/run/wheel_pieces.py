"""The result of a bundle's `run` on another machine, in pieces: the wheel, with the libraries it needs."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from farm.base.errors import BuildFailedError, UsageError
from farm.base.yamlfile import Model
from farm.engines import transfer
from farm.engines.base import Engine, Job
from farm.plan.file import Plan, Sha256
from farm.run.build import the_wheel
from farm.run.short_job import run_to_end

MAX_BUILT = 16 << 30
MAX_RESULT = 1 << 16
STAND_IN = b"farm stand-in for a library"
"""Content of the stubs of `pack_toolchain.py`."""
MAX_LIBRARIES = 16 << 30
COLLECT_TIMEOUT_S = 3600


class Result(Model):
    """`result.json` beside the pieces: `size` in bytes; `plan` is the digest of the plan that was built."""

    size: int = Field(gt=0, le=MAX_BUILT)
    sha256: Sha256
    pieces: int = Field(gt=0, le=10_000)
    plan: Sha256


def join(plan: Plan, pieces: Path, dest: Path) -> Path:
    """The wheel; it is in `wheel/` of the new folder `dest`, its libraries in `lib/`.

    `pieces` holds `result.json` and `piece-00`, `piece-01`, …

    Raises:
        UsageError: Pieces are missing, are of another plan, or are damaged; `dest` holds nothing then.
        FarmError: What they make holds something else than files, or not one wheel.
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
        raise UsageError(f"{pieces} lacks {', '.join(missing[:5])}", hint="copy them here")
    # Sizes before hashes: a piece that is still being copied is found at once.
    if sum(path.stat().st_size for path in files) != result.size:
        raise UsageError(f"the pieces in {pieces} are not {result.size} bytes together", hint="copy them again")
    total = hashlib.sha256()
    for data in _read(files):
        total.update(data)
    if total.hexdigest() != result.sha256:
        raise UsageError(f"the pieces in {pieces} are damaged: their sha256 differs", hint="copy them again")
    transfer.unpack(_read(files), dest, MAX_BUILT)
    return the_wheel(dest / "wheel")


def _read(files: list[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as stream:
            while data := stream.read(1 << 20):
                yield data


def stand_ins(libraries: Path) -> list[str]:
    """The libraries that the bundle's toolchain had only to link with: cuBLAS and others of CUDA's big ones."""
    found = sorted(libraries.iterdir()) if libraries.is_dir() else []
    return [path.name for path in found if STAND_IN in path.read_bytes()]


def collect_libraries(plan: Plan, engine: Engine, image: str, wheel: Path, dest: Path, *, run: str) -> None:
    """Put the libraries that the wheel needs into `dest`, from the image, which has them whole.

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
        shutil.rmtree(dest, ignore_errors=True)
        (found / "lib").rename(dest)
    except OSError as error:
        raise BuildFailedError(f"no library came out of {image}: {error.strerror}") from error
