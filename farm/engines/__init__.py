"""The engines, which run jobs. `base` is the contract; `docker`, `host`, `swarm`, `slurm` and `github` implement it;
`images` makes toolchain images, `transfer` moves files, `runners` has the machines of ci/runners.yaml.
"""

NAMES = {
    "docker": "containers of the Docker engines in ci/runners.yaml, or of this machine's (default for Linux)",
    "host": "processes of this machine, with its compilers (default for Windows on Windows and for macOS on a Mac)",
    "swarm": "the nodes of a Docker Swarm",
    "slurm": "jobs of a Slurm cluster, without Docker or root on its nodes",
    "github": "self-hosted runners of GitHub Actions",
}
"""The words of `--on`, and where a build runs then. Here, where naming them imports no engine."""
