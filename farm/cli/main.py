"""The `farm` command: arguments in, exit codes out. What the commands do stands in `farm.cli.commands`."""

import argparse
import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from farm import __version__
from farm.cli.index_options import add_single_writer
from farm.cli.options import (
    add_dependencies,
    add_detach,
    add_engine,
    add_matrix,
    add_on,
    add_questions,
    add_run_commands,
    add_runners,
    add_selectors,
    add_smoke,
    add_waivers,
)
from farm.errors import FarmError, InfrastructureError

INTERRUPTED = 130

# Where each command is carried out. Only what one needs is imported: that of all takes longer than some commands.
COMMANDS = {
    "submit": "farm.cli.commands:cmd_submit",
    "build": "farm.cli.commands:cmd_build",
    "plan": "farm.cli.commands:cmd_plan",
    "why": "farm.cli.commands:cmd_why",
    "matrix": "farm.cli.matrix:cmd_matrix",
    "detect": "farm.cli.detect:cmd_detect",
    "doctor": "farm.cli.doctor:cmd_doctor",
    "render": "farm.cli.commands:cmd_render",
    "patches": "farm.cli.patches:cmd_patches",
    "inspect": "farm.cli.commands:cmd_inspect",
    "repair": "farm.cli.repair:cmd_repair",
    "verify": "farm.cli.verify:cmd_verify",
    "publish": "farm.cli.commands:cmd_publish",
    "index": "farm.cli.index:cmd_index",
    "smoke": "farm.cli.commands:cmd_smoke",
    "runners": "farm.cli.runners:cmd_runners",
    "status": "farm.cli.runs:cmd_status",
    "logs": "farm.cli.runs:cmd_logs",
    "site": "farm.cli.site:cmd_site_build",
    "cancel": "farm.cli.runs:cmd_cancel",
    "retry": "farm.cli.runs:cmd_retry",
    "dispatch": "farm.cli.runs:cmd_dispatch",
    "cache": "farm.cli.cache:cmd_cache",
}

EPILOG = """\
exit codes: 0 done, 2 usage or configuration, 3 not buildable, 4 no runner or engine, 5 build failed,
6 verification failed, 7 publish refused, 8 smoke failed, 9 infrastructure, 130 interrupted"""


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, everything else on stderr")
    return parser


def _add_repair(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    repair = _command(commands, "repair", "add the libraries that a wheel needs, correct its tags and RECORD")
    repair.add_argument("wheel", type=Path)
    repair.add_argument("--lib-dir", type=Path, action="append", default=[], metavar="DIR", help="may be repeated")
    where = repair.add_mutually_exclusive_group(required=True)
    where.add_argument("--into", metavar="FOLDER", help="where the package's libraries look, such as torch/lib")
    where.add_argument(
        "--tools", action="store_true", help="into <name>.libs: auditwheel, patchelf and delvewheel make it be found"
    )
    repair.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="libraries to leave out")
    repair.add_argument(
        "--opens", action="append", default=[], metavar="PATTERN", help="libraries that others open by name: add them"
    )
    repair.add_argument("--version", dest="new_version", metavar="VERSION", help="set the version")
    repair.add_argument(
        "--require", action="append", default=[], metavar="REQUIREMENT", help="METADATA must say it, such as 'numpy<2'"
    )
    repair.add_argument("-o", "--output", type=Path, default=Path("repaired"), metavar="DIR")


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole command line; for `repair`, which takes no longer than that, only what it needs."""
    top = argparse.ArgumentParser(
        prog="farm",
        description="Builds, repairs, verifies, publishes and smoke-tests PyTorch wheels for old hardware.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"farm {__version__}")
    top.add_argument("--project", type=Path, metavar="DIR", help="the checkout with ci/ (default: found from here up)")
    top.add_argument("--traceback", action="store_true", help="show where an error was raised, for bug reports")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    if command == "repair":
        _add_repair(commands)
        return top
    from farm.cli import index

    submit = _command(commands, "submit", "build, repair, verify, publish, install and smoke-test: the main job")
    add_selectors(submit)
    submit.add_argument("--no-publish", action="store_true", help="stop after verify")
    submit.add_argument("--no-smoke", action="store_true", help="stop after publish")
    add_engine(submit)
    add_detach(submit)
    submit.add_argument(
        "--carried", type=Path, metavar="DIR", help="build nothing: DIR holds what a bundle's `run --out DIR` gave back"
    )

    add_selectors(_command(commands, "plan", "the resolved build, each value with its origin"))

    why = _command(commands, "why", "can it be built? the reasons, the facts behind them, the nearest that can")
    add_selectors(why)
    add_questions(why)

    matrix = _command(commands, "matrix", "what the channels offer, as a grid, a list or a workflow's matrix")
    add_matrix(matrix)

    detect = _command(commands, "detect", "this machine's GPU, driver and CPU, the variant for it and the pip command")
    detect.add_argument("--workload", default="general", choices=["general", "bf16", "int8"], help="for the CPU")
    detect.add_argument("--index", metavar="URL", help="https://…, a folder or s3://… (default: ci/farm.yaml)")

    render = _command(commands, "render", "Dockerfile, scripts and plan: all that an engine needs")
    add_selectors(render)
    render.add_argument("-o", "--output", type=Path, metavar="DIR", help="where the rendered files go")
    render.add_argument(
        "--bundle",
        type=Path,
        metavar="DIR",
        help="everything that the build needs, in parts, for a machine that is cut off",
    )

    patches = _command(commands, "patches", "which declared changes a source tree needs, as a diff; --apply makes them")
    patches.add_argument("source", type=Path, metavar="SOURCE", help="the source tree")
    patches.add_argument("--package", default="torch", help="whose patches (default: torch)")
    patches.add_argument("--apply", action="store_true", help="write the changes (default: a dry run)")
    patches.add_argument("--system", choices=["linux", "windows", "macos"], help="build on (default: this machine's)")
    patches.add_argument("--setuptools", type=int, metavar="MAJOR", help="of the build environment (default: here)")
    patches.add_argument("--cmake", type=int, metavar="MAJOR", help="of the build environment (default: here)")
    patches.add_argument("--compiler", metavar="NAME", help="cl, gcc, clang-cl, icx (default: CC)")

    doctor = _command(commands, "doctor", "is this machine fit to build and to use? what is missing, how to get it")
    doctor.add_argument("--variant", metavar="GPU-CPU-PYTHON", help="fit for this build (default: what the machine is)")
    doctor.add_argument("--cuda", metavar="X.Y", help="the CUDA toolkit to judge (default: the channel's)")
    doctor.add_argument("--channel", help="a pinned stack of ci/matrix.yaml (default: the first that fits)")

    build = _command(commands, "build", "carry out a plan here as far as the wheel as built")
    build.add_argument("plan", type=Path, metavar="PLAN.json", help="what `farm plan --json` printed")
    add_on(build)

    inspect = _command(commands, "inspect", "what is inside a wheel: device code, imports, tags")
    inspect.add_argument("wheel", type=Path, help="a file; with --why-126 an installed package's folder too")
    inspect.add_argument("--tree", action="store_true", help="each library with what it holds and needs")
    inspect.add_argument("--why-126", action="store_true", help="which DLL is missing behind WinError 126, and why")

    _add_repair(commands)

    verify = _command(commands, "verify", "is a wheel installable, importable, and what its name promises?")
    verify.add_argument("wheel", type=Path)
    verify.add_argument("--policy", type=Path, metavar="FILE", help="what it is held to, as YAML, instead of a variant")
    add_selectors(verify, required=False)
    add_waivers(verify)
    add_dependencies(verify)

    publish = _command(commands, "publish", "verify a wheel and put it into the index")
    publish.add_argument("wheel", type=Path)
    add_selectors(publish)
    add_waivers(publish)
    publish.add_argument("--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)")

    add_single_writer(publish)

    smoke = _command(commands, "smoke", "install from the index into a fresh environment and run the probe")
    add_selectors(smoke)
    add_smoke(smoke)

    runners = _command(commands, "runners", "the machines of ci/runners.yaml: what they can do, and are they there?")
    add_runners(runners)

    index.add(commands)

    add_run_commands(partial(_command, commands))

    cache = _command(commands, "cache", "what the compiler cache did for the builds, by language and axis")
    cache.add_argument(
        "action", choices=["report"], help="hits and misses; gpu, cpu, python: what the objects depend on"
    )
    cache.add_argument("run", nargs="*", metavar="RUN", help="runs by their ids (default: all that have counts)")

    site = _command(commands, "site", "the pages beside the index: pick a wheel, see the farm")
    site.add_argument("action", choices=["build"], help="build them from the matrix, the index and the journal")
    site.add_argument("--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)")
    site.add_argument("-o", "--output", type=Path, metavar="DIR", help="a folder instead of the index")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = sys.argv[1:] if argv is None else argv
    args = parser(given[0] if given else None).parse_args(given)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no failure
    try:
        return _run(args)
    except FarmError as error:
        return _failed(error, args)
    except KeyboardInterrupt:
        print("farm: interrupted; nothing half-done was published", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # no space, no permission, a file where a folder should be
        where = f"{error.filename}: " if error.filename else ""
        return _failed(InfrastructureError(f"{where}{error.strerror or error}"), args)


def _run(args: argparse.Namespace) -> int:
    module, _, function = COMMANDS[args.command].partition(":")
    gc.disable()  # what is imported stays: searching it for garbage takes a tenth of the time
    carry_out: Callable[[argparse.Namespace], int] = getattr(import_module(module), function)
    gc.freeze()
    gc.enable()
    return carry_out(args)


def _failed(error: FarmError, args: argparse.Namespace) -> int:
    if args.traceback:
        raise error
    from farm.cli.show import explain

    explain(error)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
