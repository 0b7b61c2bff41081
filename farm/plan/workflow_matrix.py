"""The jobs of a workflow of GitHub Actions for builds of the matrix."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from farm.plan.channel import Build
from farm.plan.matrix import Matrix

CHUNK = 256
"""Jobs that one matrix may have: GitHub Actions, "Usage limits, billing, and administration"."""


def workflow_matrix(
    matrix: Matrix,
    builds: Iterable[Build],
    runs_on: Callable[[Literal["build", "smoke"], Build], list[str]],
) -> dict[str, list[list[dict[str, Any]]]]:
    """`{"build": chunks, "smoke": chunks}`: each a list of chunks of at most 256 entries, in the
    order of the builds.

    Chunk n of `smoke` tests what chunk n of `build` makes, so that a workflow can carry out a chunk
    alone; a chunk takes about 60 kB (a job's outputs may take 1 MB). `cuda` is empty where the
    channel's own default serves; else it is what `--cuda` must be given. `name` is unique in the
    whole matrix.
    """
    build_jobs: list[dict[str, Any]] = []
    smoke_jobs: list[dict[str, Any]] = []
    for build in builds:
        entry = {
            "name": f"{build.channel} {build.alias}",
            "channel": build.channel,
            "package": build.package,
            "variant": str(build.variant),
            "platform": build.platform,
            "cuda": _cuda_to_give(matrix, build),
        }
        build_jobs.append({**entry, "runs_on": runs_on("build", build)})
        smoke_jobs.append({**entry, "runs_on": runs_on("smoke", build)})
    return {"build": _chunks(build_jobs), "smoke": _chunks(smoke_jobs)}


def _cuda_to_give(matrix: Matrix, build: Build) -> str:
    """What `--cuda` must be given for a build; empty where its channel's default serves."""
    channel = matrix.channel(build.channel)
    default = channel.cudas(build.package, build.variant, build.platform)[0]
    if build.cuda is None or build.cuda == default:
        return ""
    return build.cuda


def _chunks(jobs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [jobs[start : start + CHUNK] for start in range(0, len(jobs), CHUNK)]
