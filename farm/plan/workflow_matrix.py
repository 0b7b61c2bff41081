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
    jobs: dict[str, list[dict[str, Any]]] = {"build": [], "smoke": []}
    for build in builds:
        default = matrix.channel(build.channel).cudas(build.package, build.variant, build.platform)[
            0
        ]
        entry = {
            "name": f"{build.channel} {build.alias}",
            "channel": build.channel,
            "package": build.package,
            "variant": str(build.variant),
            "platform": build.platform,
            "cuda": "" if build.cuda in {None, default} else build.cuda,
        }
        jobs["build"].append({**entry, "runs_on": runs_on("build", build)})
        jobs["smoke"].append({**entry, "runs_on": runs_on("smoke", build)})
    return {
        kind: [every[at : at + CHUNK] for at in range(0, len(every), CHUNK)]
        for kind, every in jobs.items()
    }
