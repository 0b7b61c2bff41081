"""Options that several commands share. Nothing heavy is imported here: `farm --version` is quick."""

import argparse
from collections.abc import Callable
from pathlib import Path

from farm.options import OPTIONS

SWITCHES = ("flash-attention", "mem-eff-attention", "fbgemm", "mkldnn", "nnpack")


def add_selectors(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """What to build: the same everywhere."""
    group = parser.add_argument_group("selectors")
    group.add_argument(
        "--variant",
        required=required,
        metavar="GPU-CPU-PYTHON",
        help="for example sm35-avx-py311, or an alias that `farm matrix --format names` prints",
    )
    group.add_argument("--package", default="torch", help="what to build (default: torch)")
    group.add_argument("--platform", default="linux", choices=["linux", "windows", "macos"])
    group.add_argument("--channel", help="a pinned stack of ci/matrix.yaml (default: the first that fits)")
    over = parser.add_argument_group("overrides", "also as FARM_CUDA=…, or under options: in ci/farm.yaml")
    for option in OPTIONS.values():
        if option.kind is bool:
            over.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=option.help)
        else:
            over.add_argument(option.flag, type=option.kind, metavar=option.placeholder, help=option.help)


def add_questions(parser: argparse.ArgumentParser) -> None:
    """The options of `farm why` beside the selectors; none of them changes a build."""
    group = parser.add_argument_group("what else to ask")
    group.add_argument("--gpu", metavar="NAME", help="the card that must run it: 'RTX 5070', 'Tesla K40', sm_120, 12.0")
    group.add_argument("--driver", metavar="VERSION", help="the driver that it runs on: 470 or 470.82.01")
    group.add_argument("--arch-list", metavar="LIST", help="TORCH_CUDA_ARCH_LIST: '3.5;3.7+PTX'")
    group.add_argument("--msvc", metavar="VERSION", help="Visual Studio, toolset or compiler: 2022, 14.29, 19.29")
    group.add_argument("--gcc", type=int, metavar="MAJOR", help="the host compiler on Linux")
    group.add_argument("--numpy", metavar="VERSION", help="the numpy that the wheel meets")
    for name in SWITCHES:
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=f"with {switch(name)}=1")


def add_dependencies(parser: argparse.ArgumentParser) -> None:
    """The wheels that a wheel leaves libraries to."""
    parser.add_argument(
        "--dependency",
        action="append",
        default=[],
        type=Path,
        metavar="WHEEL|DIR",
        help="a wheel that it requires, or a folder of them: imports are followed into them; may be repeated",
    )


def add_waivers(parser: argparse.ArgumentParser) -> None:
    """Findings that are accepted, each with its reason."""
    parser.add_argument(
        "--waive",
        action="append",
        default=[],
        metavar="CHECK:PATTERN=REASON",
        help="accept what this check finds in members that fit the pattern; the reason is kept; may be repeated",
    )


def add_matrix(parser: argparse.ArgumentParser) -> None:
    """Which builds of the matrix, and in which form."""
    parser.add_argument("--channel", help="this channel alone")
    parser.add_argument("--package", metavar="PATTERN", help="packages that fit, such as torch*")
    parser.add_argument("--platform", choices=["linux", "windows", "macos"])
    parser.add_argument("--variant", metavar="PATTERN", help="variants that fit, such as sm35-*-py311")
    parser.add_argument("--format", default="table", choices=["table", "json", "github", "names"])


def add_runners(parser: argparse.ArgumentParser) -> None:
    """What to know of the runners."""
    parser.add_argument("what", choices=["list", "check"], help="the file alone, or the engines against the file")
    parser.add_argument("--channel", help="check: are there runners for the builds of this channel?")


def add_smoke(parser: argparse.ArgumentParser) -> None:
    """What `farm smoke` takes beside the selectors."""
    parser.add_argument("--index-url", metavar="URL", help="what pip or uv gets (default: the project's own index)")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="this file; the report is left beside it as well")
    parser.add_argument("--require-gpu", action="store_true", help="a GPU part that cannot run is a failure")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="the reports as JUnit's XML, for CI")
    parser.add_argument(
        "--check-limit", type=_seconds, default=900, metavar="SECONDS", help="for one check (default: 900)"
    )
    parser.add_argument(
        "--limit", type=_seconds, metavar="SECONDS", help="for all of them (default: smoke_timeout_s in ci/farm.yaml)"
    )


def _seconds(text: str) -> int:
    number = int(text)
    if not 0 < number <= 86400:
        raise ValueError
    return number


def add_on(parser: argparse.ArgumentParser) -> None:
    """Where to build."""
    parser.add_argument(
        "--on",
        default="docker",
        metavar="ENGINE",
        help="docker (default): containers here; host: a process of this machine with its own compilers; "
        "swarm: the nodes of a Docker Swarm; github: self-hosted runners of GitHub Actions (docs/dispatch.md)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Where to build, and when."""
    add_on(parser)
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher goes first (default: 0)")


def add_detach(parser: argparse.ArgumentParser) -> None:
    """Not to wait for the end."""
    parser.add_argument("--detach", action="store_true", help="print the run's id and leave it to the dispatcher")


def add_run_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """The commands about runs that were submitted."""
    status = command("status", "the runs and their steps, and why what waits waits")
    status.add_argument("run", nargs="?", help="an id or its beginning")
    status.add_argument("--limit", type=int, default=20)
    status.add_argument("--watch", action="store_true", help="go on showing it until everything has ended")

    logs = command("logs", "the build log of a run")
    logs.add_argument("run", nargs="?", help="an id or its beginning (default: the newest run)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")

    cancel = command("cancel", "end a run; returns when what ran of it is seen to have ended")
    cancel.add_argument("run", help="an id or its beginning")

    retry = command("retry", "the plan of an ended run again, as a new run")
    retry.add_argument("run", help="an id or its beginning")
    add_detach(retry)

    command("dispatch", "carry out detached runs until none is left (submit --detach starts it by itself)")


def switch(name: str) -> str:
    """USE_FLASH_ATTENTION for `flash-attention`."""
    return "USE_" + name.upper().replace("-", "_")
