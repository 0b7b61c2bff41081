"""An offline bundle: a plan with all that it needs, in parts that can be carried; and the wheel
that comes back.
"""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any

from pydantic import Field, ValidationError

from farm.base import outputs
from farm.base.errors import BuildFailedError, UsageError
from farm.base.heartbeat import megabytes
from farm.base.safe_files import CHUNK, create_new, open_plain
from farm.base.temporary import temporary_folder
from farm.base.yamlfile import Model
from farm.base.zipapps import pack
from farm.engines import host, transfer
from farm.engines.base import Engine, Job
from farm.engines.docker import DockerEngine
from farm.plan.file import Plan, Sha256
from farm.plan.recipe import recipe
from farm.plan.render import EPOCH
from farm.run.backends import check_engine, open_backend
from farm.run.build_job import TREE, the_wheel, tree_volume
from farm.run.needs import fetch_needs
from farm.run.sources import gather
from farm.run.toolchain import (
    pack_toolchain,
    run_to_end,
    toolchain,
    unpacked_size,
    write_context,
)
from farm.run.workspace import Outcomes, Workspace

PART_BYTES = 56 << 20
RUNNER = "farm.run.standalone.bundle:main"
CARRIED = (
    *host.CARRIED,
    "farm/run/__init__.py",
    "farm/run/standalone/__init__.py",
    "farm/run/standalone/unpacked_files.py",
)
"""The files of the farm that the bundle's program imports by their own names."""


def write_bundle(
    plan: Plan,
    *,
    dest: Path,
    tree: Path,
    tree_bytes: int,
    inputs: Mapping[str, Path],
    environment: dict[str, str],
    line: Callable[[str], object] = lambda _text: None,
) -> list[Path]:
    """Write the parts, `manifest.json` and `run` into the empty or absent folder `dest`; returns
    the files.

    `tree`: the packed toolchain, of `tree_bytes` when it is unpacked, whose image sets
    `environment`; `inputs`: folders by the name that
    they get below /farm; `line` gets a line for each part. UsageError: `dest` holds something, or
    cannot be a folder.
    """
    require_empty(dest)
    new_paths: list[Path] = []
    try:
        outputs.make_folder(dest, new_paths)
        with outputs.writing(dest):
            return _write(plan, dest, tree, tree_bytes, inputs, environment, line)
    except BaseException:  # Ctrl-C, a full disk: half a bundle is not carried away
        outputs.remove([*new_paths, *(dest.iterdir() if dest.is_dir() else ())])
        raise


def require_empty(dest: Path) -> None:
    """Refuses a place for a bundle that holds something, or is no folder."""
    if dest.exists() and not dest.is_dir():
        raise UsageError(f"{dest} is not a folder", hint="name a folder for the bundle")
    if dest.exists() and any(dest.iterdir()):
        raise UsageError(
            f"{dest} is not empty", hint="name another folder for the bundle, or remove it"
        )


def _write(
    plan: Plan,
    dest: Path,
    tree: Path,
    tree_bytes: int,
    inputs: Mapping[str, Path],
    environment: dict[str, str],
    line: Callable[[str], object],
) -> list[Path]:
    splitter = _Parts(dest, line)
    input_files = {name: _files(folder) for name, folder in inputs.items()}
    input_bytes = sum(path.stat().st_size for files in input_files.values() for path in files)
    with (
        io.BufferedWriter(splitter, 1 << 20) as stream,
        # Mode `w|` never seeks: a part that is written is hashed and closed.
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        # `run` unpacks it while it reads the parts: the packed file is never written to the disk
        # there.
        _add(archive, "tree.tar.xz", tree)
        for name, folder in inputs.items():
            for path in input_files[name]:
                _add(archive, f"{name}/{path.relative_to(folder).as_posix()}", path)
    parts = splitter.finish()
    manifest: dict[str, Any] = {
        "schema": 1,
        "name": f"{plan.package}-{plan.version}-{plan.variant}",
        "plan": plan.digest,
        "parts": parts,
        "unpacked": tree_bytes + input_bytes,
        "job": {
            "command": ["bash", "/farm/job/build.sh"],
            "inputs": {f"/farm/{name}": name for name in inputs},
            "output": "/farm/out",
            # What the image sets: `run` has the image's files, and no Docker to set it.
            "environment": environment,
            "volumes": {TREE: tree_volume(plan.digest)},
            "timeout_s": plan.timeout_minutes * 60,
            "memory_per_job_gb": plan.memory_per_job_gb,
            "disk_gb": recipe(plan.recipe).disk_gb,
        },
    }
    (dest / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    run = dest / "run"
    run.write_bytes(pack(RUNNER, CARRIED))
    run.chmod(0o755)
    return [run, dest / "manifest.json", *(dest / part["name"] for part in parts)]


def bundle(workspace: Workspace, plan: Plan, dest: Path) -> list[Path]:
    """Make the bundle of a plan in `dest`: the toolchain's image is made and packed, the sources
    are gathered.
    """
    require_empty(dest)  # said before the minutes that packing takes
    check_engine(workspace, "docker", plan)
    backend = open_backend(workspace, "docker")
    engine = backend.engine
    assert isinstance(engine, DockerEngine)
    with temporary_folder("farm-bundle-") as folder:
        needed = {}
        if plan.installs:
            needed["needs"] = folder / "needs"
            fetch_needs(workspace, plan, needed["needs"])
        outcomes = Outcomes()
        rendered = write_context(workspace, plan, folder, outcomes)
        logs = workspace.artifacts / "bundle"  # stays: an error names the log
        logs.mkdir(parents=True, exist_ok=True)
        image = toolchain(workspace, backend, plan, rendered, logs, outcomes)
        with outcomes.timed("pack", workspace.watcher) as step:
            workspace.watcher.line(f"packing {image}: takes minutes, but only once for each image")
            tree = pack_toolchain(workspace, engine, image)
            step.result = str(tree)
        sources = folder / "sources"
        mirror = workspace.settings.debian_mirror
        with outcomes.timed("fetch", workspace.watcher) as step:
            files = gather(
                plan,
                workspace.artifacts / "sources",
                sources,
                mirror=mirror,
                line=workspace.watcher.line,
            )
            step.result = megabytes(sum(file.stat().st_size for file in files))
        inputs = {"job": folder / "context" / "job", "source": sources, **needed}
        environment = engine.image_environment(image)
        with outcomes.timed("write", workspace.watcher) as step:
            written = write_bundle(
                plan,
                dest=dest,
                tree=tree,
                tree_bytes=unpacked_size(tree),
                inputs=inputs,
                environment=environment,
                line=workspace.watcher.line,
            )
            step.result = megabytes(sum(path.stat().st_size for path in written))
        return written


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    info = tarfile.TarInfo(name)
    # One time and one mode for all: the same plan gives the same parts.
    info.size = path.stat().st_size
    info.mtime = EPOCH
    info.mode = 0o644
    with path.open("rb") as stream:
        archive.addfile(info, stream)


class _Parts(io.RawIOBase):
    """A file that is written as parts of at most PART_BYTES."""

    def __init__(self, dest: Path, line: Callable[[str], object]) -> None:
        self._dest = dest
        self._line = line
        self._parts: list[dict[str, Any]] = []
        self._stream: Any = None
        self._left = 0
        self._hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        written = 0
        # What tarfile writes at a time may lie across two parts.
        while written < len(view):
            if not self._left:
                self._next()
            piece = view[written : written + self._left]
            self._stream.write(piece)
            self._hash.update(piece)
            self._parts[-1]["size"] += len(piece)
            self._left -= len(piece)
            written += len(piece)
        return written

    def _next(self) -> None:
        self._end()
        name = f"part-{len(self._parts):02d}"
        self._parts.append({"name": name, "size": 0})
        self._stream = (self._dest / name).open("wb")
        self._hash = hashlib.sha256()
        self._left = PART_BYTES

    def _end(self) -> None:
        if self._stream:
            self._stream.close()
            self._parts[-1]["sha256"] = self._hash.hexdigest()
            size = sum(part["size"] for part in self._parts)
            self._line(f"{self._parts[-1]['name']}: {megabytes(size)} in all")

    def finish(self) -> list[dict[str, Any]]:
        """Close the last part; what each is."""
        self._end()
        return self._parts


MAX_BUILT = 16 << 30
MAX_RESULT = 1 << 16
STAND_IN = b"farm stand-in for a library"  # content of the stubs of `pack_toolchain.py`
MAX_LIBRARIES = 16 << 30
COLLECT_TIMEOUT_S = 3600


class PiecesResult(Model):
    """`result.json` beside the pieces: `size` in bytes; `plan` is the digest of the plan that was
    built.
    """

    size: int = Field(gt=0, le=MAX_BUILT)
    sha256: Sha256
    pieces: int = Field(gt=0, le=10_000)
    plan: Sha256


def join_pieces(plan: Plan, pieces: Path, dest: Path) -> Path:
    """The wheel; it is in `wheel/` of the new folder `dest`, its libraries in `lib/`.

    `pieces` holds `result.json` and `piece-00`, `piece-01`, … UsageError: they are missing, of
    another plan, or damaged; `dest` holds nothing then.
    """
    result = _read_result(pieces / "result.json")
    # First of all: pieces of another plan would make a whole wheel, and the wrong one.
    if result.plan != plan.digest:
        raise UsageError(
            f"{pieces} holds a build of plan {result.plan[:12]}, this is plan {plan.digest[:12]}",
            hint="give the selectors that the bundle was rendered with, in the checkout that "
            "rendered it",
        )
    files = [pieces / f"piece-{number:02d}" for number in range(result.pieces)]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise UsageError(f"{pieces} lacks {', '.join(missing[:5])}", hint="copy them here")
    # Sizes before hashes: a piece that is still being copied is found at once.
    if sum(path.stat().st_size for path in files) != result.size:
        raise UsageError(
            f"the pieces in {pieces} are not {result.size} bytes together", hint="copy them again"
        )
    dest.parent.mkdir(parents=True, exist_ok=True)
    with (
        temporary_folder("farm-pieces-", dest.parent) as folder,
        create_new(folder / "built.tar") as joined,
    ):
        _copy_pieces(files, joined, result)
        joined.seek(0)
        transfer.unpack(iter(partial(joined.read, CHUNK), b""), dest, MAX_BUILT)
    return the_wheel(dest / "wheel")


def _read_result(path: Path) -> PiecesResult:
    try:
        with open_plain(path) as stream:
            return PiecesResult.model_validate_json(stream.read(MAX_RESULT))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="name the folder of `run --out`"
        ) from error
    except ValidationError as error:
        raise UsageError(f"{path} is not what a bundle's run writes") from error


def _copy_pieces(files: list[Path], whole: IO[bytes], result: PiecesResult) -> None:
    """Copy the pieces into one file of this user's alone, and check what was copied: whoever owns
    the pieces may change them at any moment.
    """
    digest = hashlib.sha256()
    room = result.size
    for path in files:
        try:
            stream = open_plain(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", hint="copy it again") from error
        with stream, outputs.writing(path.parent):
            while room >= 0 and (chunk := stream.read(min(CHUNK, room + 1))):
                digest.update(chunk)
                whole.write(chunk)
                room -= len(chunk)
    if room != 0 or digest.hexdigest() != result.sha256:
        raise UsageError(
            f"the pieces in {files[0].parent} are damaged: their sha256 differs",
            hint="copy them again",
        )


def stand_ins(libraries: Path) -> list[str]:
    """The libraries that the bundle's toolchain had only to link with: cuBLAS and others of CUDA's
    big ones.
    """
    paths = sorted(libraries.iterdir()) if libraries.is_dir() else []
    return [path.name for path in paths if _contains(path, STAND_IN)]


def _contains(path: Path, text: bytes) -> bool:
    """True if a file has these bytes; it is not read into memory, whatever its size."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(text) >= 0


def collect_libraries(
    plan: Plan, engine: Engine, image: str, wheel: Path, dest: Path, *, run: str
) -> None:
    """Put the libraries that the wheel needs into `dest`, from the image, which has them whole."""
    excluded = [word for pattern in plan.never_vendored for word in ("--exclude", pattern)]
    job = Job(
        name=f"libraries of {plan.package}-{plan.variant}",
        image=image,
        # The script that a build in a container runs as well: the same libraries, however the wheel
        # was built.
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
    collected = dest.with_name("found")
    try:
        run_to_end(engine, job, collected, MAX_LIBRARIES)
        shutil.rmtree(dest, ignore_errors=True)
        (collected / "lib").rename(dest)
    except OSError as error:
        raise BuildFailedError(f"no library came out of {image}: {error.strerror}") from error
