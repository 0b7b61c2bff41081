"""The options of every command, and nothing that is slow to import: `farm submit --help` and Tab
need no more.
"""

import argparse
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from farm.base.text import parse_age

AGAIN = -2
"""Stands for `submit --rebuild` without a number."""
MOST = 86400  # runs of a list, seconds of a test: a day
SWITCHES = ("flash-attention", "mem-eff-attention", "fbgemm", "mkldnn", "nnpack")
"""Switches of PyTorch that `farm why` is asked about."""


def _flags(parser: argparse._ActionsContainer, texts: Mapping[str, str]) -> None:
    """Options without a value, each with its help."""
    for name, text in texts.items():
        parser.add_argument(name, action="store_true", help=text)


def _repeated(
    parser: argparse.ArgumentParser, name: str, metavar: str, text: str, kind: type = str
) -> None:
    """An option that may be given several times."""
    parser.add_argument(
        name,
        action="append",
        default=[],
        type=kind,
        metavar=metavar,
        help=f"{text}; may be repeated",
    )


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text, re.ASCII) or not 0 < int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: a number from 1 to {MOST} is needed")
    return int(text)


# --- options that several commands share ---


def _selectors(
    parser: argparse.ArgumentParser,
    *,
    required: bool = True,
    of_wheel: bool = False,
    several: bool = False,
) -> None:
    """Options that select builds. `of_wheel`: the command has `args.wheel`, whose name says the
    package.

    `several`: `--variant` may be given several times and be a pattern.
    """
    from farm.plan.options import OPTIONS
    from farm.platforms.facts import DEFAULT, PLATFORMS

    group = parser.add_argument_group("selectors")
    help_text = "for example sm35-avx-py311, or an alias that `farm matrix --format names` prints"
    help_text += "; a pattern such as 'sm3*-avx*-py311'; may be repeated" if several else ""
    group.add_argument(
        "--variant",
        required=required,
        metavar="GPU-CPU-PYTHON",
        help=help_text,
        action="append" if several else "store",
        default=[] if several else None,
    )
    if several:
        text = "what to build (default: torch; with --all: each); several come from one channel, "
        text += "those that others need first"
        group.add_argument("--package", nargs="+", metavar="NAME", help=text)
    elif of_wheel:
        group.add_argument(
            "--package", help="what was built (default: as the wheel is named, else torch)"
        )
    else:
        group.add_argument("--package", default="torch", help="what to build (default: torch)")
    group.add_argument(
        "--platform",
        default=DEFAULT,
        choices=list(PLATFORMS),
        help=f"the system that the wheel is for (default: {DEFAULT})",
    )
    _channel(group)
    over = parser.add_argument_group(
        "overrides", "also as FARM_CUDA=…, or under options: in ci/farm.yaml"
    )
    for option in OPTIONS.values():
        # None where neither form is given: so `--no-ptx` can overrule a `ptx: true` of
        # ci/farm.yaml.
        if option.kind is bool:
            over.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=option.help)
        else:
            action = "append" if option.placeholder == "NAMES" else "store"
            text = option.help
            over.add_argument(
                option.flag, action=action, type=option.kind, metavar=option.placeholder, help=text
            )


def _channel(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--channel", help="a pinned stack of ci/matrix.yaml (default: the first that fits)"
    )


def _of_wheel(parser: argparse.ArgumentParser) -> None:
    """The variant of a wheel, accepted findings, and wheels that it leaves libraries to."""
    _selectors(parser, required=False, of_wheel=True)
    text = "accept what this check finds in members that match the pattern; the reason is recorded"
    _repeated(parser, "--waive", "CHECK:PATTERN=REASON", text)
    text = "a wheel that this one requires, or a folder of wheels, to resolve imports"
    _repeated(parser, "--dependency", "WHEEL|DIR", text, Path)


def _on(parser: argparse.ArgumentParser) -> None:
    from farm.engines import NAMES

    engines = "; ".join(f"{name}: {where}" for name, (where, _) in NAMES.items())
    parser.add_argument("--on", metavar="ENGINE", help=f"{engines} (docs/how-to/dispatch.md)")


def _verbosity(parser: argparse.ArgumentParser) -> None:
    """Less or more on standard error, for `farm.cli.progress.watching`: of every command with
    steps.
    """
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-q", "--quiet", action="store_true", help="print no progress: only the result and errors"
    )
    group.add_argument(
        "-v", "--verbose", action="store_true", help="print the output of every step as it comes"
    )


def _detach(parser: argparse.ArgumentParser) -> None:
    _flags(parser, {"--detach": "print the run's id and leave it to the dispatcher"})


def _runs(parser: argparse.ArgumentParser, *, failed: bool = False, queued: bool = False) -> None:
    """The runs that a command is about: ids, or all in a state."""
    parser.add_argument("run", nargs="*", metavar="RUN", help="run ids, or unique prefixes of them")
    parser.set_defaults(failed=False, queued=False)
    if failed:
        _flags(parser, {"--failed": "every run that failed and has no later run"})
    if queued:
        _flags(parser, {"--queued": "every run that waits for its build"})


def _index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)"
    )


# --- building ---


def add_init(parser: argparse.ArgumentParser) -> None:
    text = "new project folder (default: this folder)"
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="DIR", help=text)
    _flags(
        parser,
        {"--github": "write only the workflow of GitHub Actions, into an existing project"},
    )
    parser.add_argument(
        "--channel", help="the channel that the workflow builds (default: the project's only one)"
    )


def add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["new", "remove"],
        help="new: write a recipe and add it to a channel; remove: delete both",
    )
    parser.add_argument(
        "source",
        metavar="NAME[==VERSION]",
        help="a project of the Python index, or a folder (./mine); remove: a folder of recipes/",
    )
    parser.add_argument(
        "--channel", help="the channel to add it to (default: the project's only one)"
    )
    _flags(parser, {"--anyway": "write the recipe even if the farm cannot build such a package"})


def add_submit(parser: argparse.ArgumentParser) -> None:
    _selectors(parser, required=False, several=True)
    _flags(parser, {"--all": "every build of --channel for --platform, or those of --package"})
    # `--rebuild` alone is a word of this command; `--rebuild N` is the option of every command, for
    # the version.
    (rebuild,) = (action for action in parser._actions if "--rebuild" in action.option_strings)
    rebuild.nargs = "?"
    rebuild.const = AGAIN
    rebuild.help = (
        "build even if this plan's wheel is published; N: rebuild number, appended to the "
        "version as .N"
    )
    _flags(
        parser,
        {
            "--no-publish": "stop after verify",
            "--no-smoke": "stop after publish",
            "--anyway": "build PyTorch even if upstream's own wheel runs on the card",
        },
    )
    _on(parser)
    text = "runs with a higher priority start first (default: 0)"
    parser.add_argument(
        "--yes", action="store_true", help="queue several builds without a question"
    )
    parser.add_argument("--priority", type=int, default=0, metavar="N", help=text)
    _detach(parser)
    _verbosity(parser)
    text = (
        "build nothing: take the wheel that an offline bundle's `run --out DIR` built on "
        "another machine"
    )
    parser.add_argument("--from-bundle", type=Path, metavar="DIR", help=text)


def add_plan(parser: argparse.ArgumentParser) -> None:
    _selectors(parser, several=True)
    _flags(parser, {"--all": "print the variables and every test of the build as well"})


def add_render(parser: argparse.ArgumentParser) -> None:
    _selectors(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder for the rendered files"
    )
    text = (
        "write an offline bundle: everything that the build needs, in parts, for a machine "
        "without network"
    )
    parser.add_argument("--bundle", type=Path, metavar="DIR", help=text)
    _verbosity(parser)


def add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan", type=Path, metavar="PLAN.json", help="what `farm plan --json` printed"
    )
    _on(parser)
    _verbosity(parser)


def add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", help="run id or a unique prefix of one (default: the newest runs)"
    )
    parser.add_argument(
        "--limit",
        type=_number,
        default=20,
        metavar="N",
        help="number of runs to show (default: 20)",
    )
    parser.add_argument(
        "--counts",
        action="store_true",
        help="print how many runs are in each state instead, and the longest wait",
    )


def add_logs(parser: argparse.ArgumentParser) -> None:
    _runs(parser, failed=True)
    text = "print new lines until the run ends, and exit with its code"
    parser.add_argument("-f", "--follow", action="store_true", help=text)


def add_cancel(parser: argparse.ArgumentParser) -> None:
    _runs(parser, queued=True)


def add_retry(parser: argparse.ArgumentParser) -> None:
    _runs(parser, failed=True)
    _flags(parser, {"--rebuild": "build again even if a wheel was built already"})
    _detach(parser)
    _verbosity(parser)


def add_wait(parser: argparse.ArgumentParser) -> None:
    _runs(parser)


def add_dispatch(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


# --- wheels ---


def add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "wheel", type=Path, help="a file; with --explain an installed package's folder too"
    )
    _flags(parser, {"--cpu": "decode libraries above 16 MiB too, which takes seconds for each"})
    text = (
        "what a message of the loader, CUDA or torch means: WinError 126, 127, 193, 1114, "
        "'undefined symbol', "
    )
    text += (
        "'GLIBC_2.34 not found', 'no kernel image', 'illegal instruction', …; - reads it from "
        "the input"
    )
    parser.add_argument("--explain", metavar="MESSAGE", help=text)
    text = (
        "the same as --explain 'WinError 126': which DLL is missing, who needs it, where to get it"
    )
    parser.add_argument(
        "--why-126", action="store_const", const="WinError 126", dest="explain", help=text
    )


def add_repair(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    _repeated(parser, "--lib-dir", "DIR", "search here for libraries", Path)
    where = parser.add_mutually_exclusive_group(required=True)
    text = "put libraries into this folder of the wheel, such as torch/lib"
    where.add_argument("--into", metavar="FOLDER", help=text)
    text = "repair as this plan says: folder, requirements, version and all"
    where.add_argument("--plan", type=Path, metavar="PLAN.json", help=text)
    text = (
        "put libraries into <name>.libs, as auditwheel and delvewheel do; needs patchelf or "
        "delvewheel"
    )
    where.add_argument("--tools", action="store_true", help=text)
    _repeated(parser, "--exclude", "PATTERN", "libraries not to add")
    _repeated(parser, "--opens", "PATTERN", "add libraries that others open by name")
    parser.add_argument("--version", dest="new_version", metavar="VERSION", help="set the version")
    _repeated(parser, "--require", "REQUIREMENT", 'add a Requires-Dist, such as "numpy<2"')
    text = "folder for the repaired wheel (default: repaired)"
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("repaired"), metavar="DIR", help=text
    )


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    text = "check against the rules of this YAML file instead of a variant's"
    parser.add_argument("--policy", type=Path, metavar="FILE", help=text)
    _of_wheel(parser)
    _flags(
        parser, {"--emulate": "load its libraries on an emulated CPU of the promised level (qemu)"}
    )


def add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "wheels", nargs="*", type=Path, metavar="WHEEL", help="with --to also folders of wheels"
    )
    text = "publish them in this group as they are, without verifying them for a variant"
    parser.add_argument("--to", metavar="GROUP", help=text)
    text = "publish all wheels of another index, a folder or s3://…; may be repeated"
    parser.add_argument(
        "--from", dest="sources", action="append", default=[], metavar="INDEX", help=text
    )
    _of_wheel(parser)
    _index(parser)
    text = "built/inputs.json of the run that built it, for the provenance"
    parser.add_argument("--inputs", type=Path, metavar="FILE", help=text)
    text = (
        "take what PyPI refuses: Requires-Dist with a URL, or a new name that looks like "
        "another project's"
    )
    parser.add_argument(
        "--allow", action="append", default=[], choices=["direct-urls", "similar-names"], help=text
    )
    _verbosity(parser)


def add_smoke(parser: argparse.ArgumentParser) -> None:
    _selectors(parser, required=False, of_wheel=True)
    text = (
        "index to install from: a URL as for pip, a folder or s3://… (default: the project's own)"
    )
    parser.add_argument("--index-url", metavar="URL", help=text)
    text = "install this file; the report is also written next to it"
    parser.add_argument("--wheel", type=Path, metavar="FILE", help=text)
    text = (
        "write the test as one file for any Python 3.7 or newer that has the package, and test "
        "nothing here"
    )
    parser.add_argument("--write-probe", type=Path, metavar="FILE", help=text)
    _flags(parser, {"--require-gpu": "fail where the GPU checks cannot run"})
    text = "pass this variable to the test, such as CUDA_VISIBLE_DEVICES (default: none)"
    _repeated(parser, "--pass-env", "NAME", text)
    text = "time limit for all checks (default: smoke_timeout_s in ci/farm.yaml)"
    parser.add_argument("--time-limit", type=_number, metavar="SECONDS", help=text)
    _verbosity(parser)


# --- the index ---


def add_index(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="index_command", required=True, metavar="COMMAND")
    for name, (text, add) in INDEX_COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + "."
        )
        _flags(subparser, {"--json": "print one JSON document on stdout"})
        add(subparser)


def _reconcile(parser: argparse.ArgumentParser) -> None:
    _index(parser)
    _flags(
        parser,
        {
            "--take-back": "also remove from the pages what no record or event says any more, and "
            "delete files without a record"
        },
    )


def _check(parser: argparse.ArgumentParser) -> None:
    _index(parser)
    text = (
        "ask this address as pip, uv and browsers do, and compare with the store (default: "
        "index_public_url of ci/farm.yaml)"
    )
    parser.add_argument("--public", nargs="?", const="", metavar="URL", help=text)
    _flags(parser, {"--wheels": "with --public: download and hash the wheels as well"})


def _copy(parser: argparse.ArgumentParser) -> None:
    _index(parser)
    parser.add_argument(
        "--to", required=True, metavar="URL", help="the copy: a folder or s3://bucket/prefix"
    )


def _event(
    parser: argparse.ArgumentParser, reason: str | None = None, *, required: bool = True
) -> None:
    parser.add_argument("wheels", nargs="+", metavar="WHEEL", help="file names")
    if reason is not None:
        parser.add_argument("--reason", required=required, default="", help=reason)
    else:
        parser.add_argument("--to", required=True, metavar="GROUP", help="for example sm35-avx")
    _index(parser)


def _variant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--variant", required=True, metavar="GPU-CPU-PYTHON", help="what the wheel is for"
    )
    _index(parser)


def _sign(parser: argparse.ArgumentParser) -> None:
    _index(parser)
    parser.add_argument(
        "--signing-key", metavar="FILE", help="an online key, or env:NAME (default: ci/farm.yaml)"
    )
    _flags(
        parser,
        {"--trust-clock": "sign although this machine's clock and the newest signature disagree"},
    )


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", help="the root of the index: https://…, a folder or s3://…"
    )
    text = "the root that you trust, tuf/1.root.json or a later one, as its owner gave it to you"
    parser.add_argument("--root", type=Path, required=True, metavar="FILE", help=text)
    _flags(parser, {"--wheels": "download and hash the wheels as well"})


def _keys(parser: argparse.ArgumentParser) -> None:
    text = "all public keys that may sign from now on (default: those that may sign now)"
    parser.add_argument("public", type=Path, nargs="*", metavar="ONLINE.pub", help=text)
    parser.add_argument(
        "--root-key", type=Path, required=True, metavar="FILE", help="the private root key"
    )
    parser.add_argument(
        "--new-root-key", type=Path, metavar="FILE", help="the private root key from now on"
    )
    _index(parser)


INDEX_COMMANDS = {
    "check": (
        (
            "read the whole index as a client does, hash every wheel, and report what is broken or "
            "unfinished"
        ),
        _check,
    ),
    "reconcile": ("write every page anew from the records and events", _reconcile),
    "copy": (
        "copy the index to another store, as a backup or a mirror; nothing is deleted there",
        _copy,
    ),
    "yank": (
        "have installers skip wheels unless their exact version is asked for (PEP 592)",
        lambda parser: _event(parser, "shown to those who install it anyway"),
    ),
    "unyank": (
        "take a yank back",
        lambda parser: _event(parser, "kept in the event", required=False),
    ),
    "remove": (
        "delete wheels for good; their names stay taken (a yank can be undone)",
        lambda parser: _event(parser, "kept in the event"),
    ),
    "promote": ("list wheels in a further group, without copying them", _event),
    "variant": (
        (
            "put a labelled copy of a wheel into whl/variant/, where uv's preview of wheel "
            "variants "
            "finds it"
        ),
        _variant,
    ),
    "verify": (
        "compare an index with what its owner signed, and name pages that are not signed",
        _verify,
    ),
    "sign": ("sign all pages and wheels as they are (TUF)", _sign),
    "keys": ("set the keys that may sign the index (valid for one year)", _keys),
}
"""The subcommands of `farm index`: a line of help, and what adds the arguments."""


def add_site(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["build"], help="write the pages from the index and the matrix"
    )
    _index(parser)


# --- machines ---


def add_detect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--index", metavar="URL", help="https://…, a folder or s3://… (default: ci/farm.yaml)"
    )


def add_doctor(parser: argparse.ArgumentParser) -> None:
    text = (
        "check what is needed to build wheels, too (default in a project, and with --variant, "
        "--package, --cuda "
    )
    _flags(parser, {"--build": text + "or --channel)"})
    text = "check for this build (default: for this machine's own wheels)"
    parser.add_argument("--variant", metavar="GPU-CPU-PYTHON", help=text)
    parser.add_argument(
        "--package", help="what is to be built (default: torch, or a project's own)"
    )
    parser.add_argument(
        "--cuda", metavar="X.Y", help="CUDA version to check (default: the channel's)"
    )
    _channel(parser)


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["read"])
    parser.add_argument(
        "zip", type=Path, metavar="ZIP", help="farm-report.zip, which report.cmd writes"
    )


def add_runners(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check"], help="compare the machines with the file")


def add_clean(parser: argparse.ArgumentParser) -> None:
    text = "remove only what is older than this: 30d, 12h, 4w (default: all; without any option "
    text += "of age or kind, what `retention` of ci/farm.yaml says)"
    parser.add_argument("--older-than", type=_age, default=None, metavar="AGE", help=text)
    _flags(
        parser,
        {
            "--unpublished": "remove wheels that are in no index as well",
            "--logs": "remove logs and reports of runs that failed as well",
            "--compiler-caches": "remove the compiler caches of packages as well: their next "
            "builds take longer",
            "--dry-run": "only list what would be removed",
        },
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask in a terminal")


def _age(text: str) -> timedelta:
    try:
        return parse_age(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# --- knowledge ---


def add_why(parser: argparse.ArgumentParser) -> None:
    _selectors(parser, required=False)
    _flags(
        parser, {"--official": "ask whether PyTorch's own wheel runs on --gpu; needs no --variant"}
    )
    group = parser.add_argument_group("what else to ask")
    text = (
        "a card that must run it: 'RTX 5070', 'Tesla K40', sm_120, 12.0; with --official "
        "several, or - for what "
    )
    group.add_argument("--gpu", action="append", metavar="NAME", help=text + "nvidia-smi prints")
    group.add_argument(
        "--python",
        metavar="NAME",
        help="with --official, the Python to install it for: py312, py313t",
    )
    group.add_argument("--driver", metavar="VERSION", help="the installed driver: 470 or 470.82.01")
    group.add_argument(
        "--glibc", metavar="VERSION", help="with --official, the machine's glibc: 2.17, 2.28"
    )
    group.add_argument("--cpu", metavar="LEVEL", help="with --official, its CPU: avx, avx2, …")
    group.add_argument("--arch-list", metavar="LIST", help="TORCH_CUDA_ARCH_LIST: '3.5;3.7+PTX'")
    group.add_argument(
        "--msvc", metavar="VERSION", help="Visual Studio, toolset or compiler: 2022, 14.29, 19.29"
    )
    group.add_argument("--gcc", metavar="MAJOR", help="the host compiler on Linux")
    group.add_argument(
        "--numpy", metavar="VERSION", help="the numpy that is installed with the wheel"
    )
    group.add_argument("-v", "--verbose", action="store_true", help="print facts and sources too")
    for name in SWITCHES:
        group.add_argument(
            f"--{name}", action=argparse.BooleanOptionalAction, help=f"with {switch(name)}=1"
        )


def switch(name: str) -> str:
    """USE_FLASH_ATTENTION for `flash-attention`."""
    return "USE_" + name.upper().replace("-", "_")


def add_matrix(parser: argparse.ArgumentParser) -> None:
    from farm.platforms.facts import PLATFORMS

    parser.add_argument("--channel", help="list only this channel")
    parser.add_argument(
        "--package", metavar="PATTERN", help="list only matching packages, such as torch*"
    )
    parser.add_argument(
        "--platform", choices=list(PLATFORMS), help="list only builds for this system"
    )
    parser.add_argument(
        "--variant", metavar="PATTERN", help="list only matching variants, such as sm35-*-py311"
    )
    _flags(parser, {"--missing": "list only builds whose wheel the project's index does not have"})
    parser.add_argument(
        "--limit", type=_number, metavar="N", help="list at most the first N (GitHub: 256 jobs)"
    )
    text = "table, a workflow's matrix, or names alone (default: table)"
    parser.add_argument(
        "--format", default="table", choices=["table", "github", "names"], help=text
    )


def add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
