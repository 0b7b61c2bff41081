"""The engines, which run jobs. `base` is the contract; `docker`, `host`, `swarm`, `slurm` and
`github` implement it; `images` makes toolchain images, `transfer` moves files.
"""

NAMES = {
    "docker": (
        (
            "containers of the Docker engines in ci/runners.yaml, or of this machine's (default "
            "for "
            "Linux)"
        ),
        "nothing more",
    ),
    "host": (
        (
            "processes of this machine, with its compilers (default for Windows on Windows and for "
            "macOS on a Mac)"
        ),
        "the plan's Python with `build`, a compiler; Windows: [windows.md](windows.md#host-engine)",
    ),
    "swarm": ("the nodes of a Docker Swarm", "`swarm:` in `ci/farm.yaml` ([below](#a-swarm))"),
    "slurm": (
        "jobs of a Slurm cluster, without Docker or root on its nodes",
        "`slurm:` in `ci/farm.yaml` ([slurm.md](slurm.md))",
    ),
    "github": (
        "self-hosted runners of GitHub Actions",
        "`github:` in `ci/runners.yaml`, a token ([below](#github-actions))",
    ),
}
"""The words of `--on`: where a build runs then, and what that needs. Here, where naming them
imports no engine.
"""
