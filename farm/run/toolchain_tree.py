"""The file system of a toolchain image: packed once, for machines that have no Docker."""

import hashlib
from pathlib import Path

from farm.base.retries import retry_while_open
from farm.engines.base import Engine, Job
from farm.run.short_job import run_to_end

MAX_TREE = 8 << 30
PACK_TIMEOUT_S = 3600


def pack_toolchain(engine: Engine, image: str, script: Path, cache: Path, *, whole: bool = False) -> Path:
    """The file system of a toolchain image as one compressed tar in `cache`; packed once an image and script.

    `whole`: with CUDA's big libraries; else stand-ins are packed, to link with.

    Raises:
        BuildFailedError: The image cannot be packed.
    """
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    packed = cache / f"{image.rpartition(':')[2]}-{version}{'-whole' if whole else ''}.tar.xz"
    if packed.exists():
        return packed
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{packed.stem}.job"
    folder.mkdir(exist_ok=True)
    (folder / script.name).write_bytes(script.read_bytes())
    job = Job(
        name=f"pack {image}",
        image=image,
        command=("python3", f"/farm/job/{script.name}", "/farm/out", *(["--whole"] if whole else [])),
        inputs={"/farm/job": folder},
        output="/farm/out",
        environment={},
        limits=engine.capacity(),
        timeout_s=PACK_TIMEOUT_S,
        labels={"farm.pack": packed.stem},
    )
    part = cache / f"{packed.stem}.part"
    # It gets its name when it is whole: a bundle that was interrupted packs it again.
    run_to_end(engine, job, part, MAX_TREE)
    retry_while_open((part / "tree.tar.xz").replace, packed)
    return packed
