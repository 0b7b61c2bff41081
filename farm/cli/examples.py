"""Two command lines for each command, for its help: `farm COMMAND --help`."""

from collections.abc import Mapping

Example = tuple[str, str]
"""A command line, and what it does."""

EXAMPLES: Mapping[str, tuple[Example, Example]] = {
    "init": (
        ("farm init my-wheels", "a new project in a folder of its own"),
        ("farm init --github", "the workflow alone, for the project in this folder"),
    ),
    "recipe": (
        ("farm recipe new Levenshtein==0.27.5", "from the sdist of the Python index"),
        ("farm recipe new ./my-package --channel mine", "from a folder of the project"),
    ),
    "submit": (
        ("farm submit --variant sm35-avx-py311", "build PyTorch for a Tesla K40, and publish it"),
        (
            "farm submit --variant 'cpu-*-py311' --package hello --detach",
            "every CPU level, in the background",
        ),
    ),
    "plan": (
        ("farm plan --variant sm35-avx-py311", "what would be built for a Tesla K40"),
        (
            "farm plan --variant sm35-avx-py311 --package canary --json",
            "the plan as a file, with its digest",
        ),
    ),
    "render": (
        ("farm render --variant sm35-avx-py311 -o out", "Dockerfile, scripts and plan"),
        (
            "farm render --variant sm35-avx-py311 --bundle parts",
            "what a machine without network needs for the build",
        ),
    ),
    "build": (
        ("farm build plan.json", "the wheel of a plan, unrepaired"),
        ("farm build plan.json -v", "with the output of the build as it comes"),
    ),
    "status": (
        ("farm status", "the latest runs"),
        ("farm status --json", "the same for a program"),
    ),
    "logs": (
        ("farm logs 20261126-1433", "the log of a run, by a unique prefix of its id"),
        ("farm logs -f 20261126-1433", "follow it while it is written"),
    ),
    "cancel": (
        ("farm cancel 20261126-1433", "stop a run"),
        ("farm cancel --queued", "stop every run that waits for its build"),
    ),
    "retry": (
        ("farm retry 20261126-1433", "run a plan again, from the wheel that is there"),
        ("farm retry --failed", "every run that failed and has no later run"),
    ),
    "wait": (
        ("farm wait 20261126-1433", "wait for one run; its exit code"),
        ("farm wait 20261126-1433 20261126-1502", "wait for several; the highest exit code"),
    ),
    "dispatch": (
        ("farm dispatch", "start waiting runs until none is left"),
        ("farm --project /srv/wheels dispatch", "for another project"),
    ),
    "inspect": (
        ("farm inspect torch-2.6.0-cp311-cp311-linux_x86_64.whl", "what is inside a wheel"),
        (
            "farm inspect site-packages/torch --explain 'undefined symbol: iJIT_NotifyEvent'",
            "why an installed package does not load",
        ),
    ),
    "repair": (
        ("farm repair built.whl --plan plan.json", "as the plan of its build says"),
        ("farm repair built.whl --tools -o out", "as auditwheel does, for any package"),
    ),
    "verify": (
        ("farm verify any.whl", "whether it can be installed and imported"),
        ("farm verify any.whl --variant sm35-avx-py311", "and holds what the variant promises"),
    ),
    "publish": (
        (
            "farm publish built.whl --variant sm35-avx-py311",
            "verify a wheel and upload it to the project's index",
        ),
        ("farm publish --from other/index", "add the wheels of another index"),
    ),
    "smoke": (
        (
            "farm smoke --variant sm35-avx-py311",
            "install the published wheel into a fresh environment and test it",
        ),
        ("farm smoke --wheel built.whl", "test a wheel that is a file"),
    ),
    "index": (
        ("farm index check", "read the whole index as a client does"),
        ("farm index yank FILE.whl --reason 'wrong CUDA'", "hide a wheel from new installs"),
    ),
    "site": (
        ("farm site build", "write the pages of the project's index"),
        ("farm site build --index ./index", "those of another index"),
    ),
    "detect": (
        ("farm detect", "this machine, and the wheel for it"),
        ("farm detect --json", "the same for a program"),
    ),
    "doctor": (
        ("farm doctor", "whether this machine can build and use wheels"),
        ("farm doctor --variant sm35-avx-py311", "whether it can make this build"),
    ),
    "report": (
        ("farm report read farm-report.zip", "the report of a build on Windows"),
        ("farm --project ./wheels report read farm-report.zip", "of another project"),
    ),
    "runners": (
        ("farm runners check", "whether each machine is online and as written"),
        ("farm runners check --json", "the same for a program"),
    ),
    "clean": (
        ("farm clean --dry-run", "list what old runs left"),
        ("farm clean --older-than 30d -y", "remove what is older, without a question"),
    ),
    "why": (
        (
            "farm why --variant sm120-avx2-py311 --gpu 'RTX 5070' --cuda 12.3",
            "why it cannot be built, and what can",
        ),
        (
            "farm why --official --gpu 'GTX 1080 Ti'",
            "whether PyTorch's own wheel runs on a card; `--gpu -` reads what nvidia-smi prints",
        ),
    ),
    "matrix": (
        ("farm matrix --variant 'sm35-*'", "the builds for Kepler"),
        ("farm matrix --format names --package torch", "their names, one a line"),
    ),
    "completion": (
        ("farm completion bash", "for: source <(farm completion bash)"),
        ("farm completion fish", "for ~/.config/fish/completions/farm.fish"),
    ),
}
