"""Commands about a wheel's file: `farm inspect`, `repair`, `verify`. They start without the farm's
plans.
"""

import argparse
import contextlib
import gc
import itertools
from collections.abc import Iterator

from farm.base.errors import ExitCode, UsageError
from farm.cli import show
from farm.platforms.facts import of_tag, unread
from farm.policy.rules import Policy, Waiver, load_policy, parse_waiver
from farm.wheel.inspect import DECODED, WheelContents, inspect
from farm.wheel.library import Library
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.repair import RepairOptions, RepairResult, repair
from farm.wheel.verify import findings_of, verify

_MAX_CORRECTED = 5  # lines about RECORD


def run_inspect(args: argparse.Namespace) -> int:
    if args.explain is not None:
        from farm.cli.explanations import explanations_of, lines_of

        explanations = explanations_of(args.wheel, args.explain)
        documents = [explanation.model_dump(mode="json") for explanation in explanations]
        show.answer(args, documents, itertools.chain.from_iterable(map(lines_of, explanations)))
        return 0
    contents = inspect(args.wheel, decoded=None if args.cpu else DECODED)  # None: all of it
    if args.json:
        show.json_document(contents.to_json())
    else:
        show_contents(contents)
    return 0


def show_contents(contents: WheelContents) -> None:
    """The tables of a wheel's content."""
    show.say(
        f"{contents.file}: {contents.size / 1e6:.1f} MB, {contents.unpacked / 1e6:.1f} MB unpacked"
    )
    show.say(f"tags: {', '.join(contents.tags)}; {_floor(contents)}")
    device_code = list(_device_code(contents))
    if device_code:
        columns = ("library", "SASS", "PTX", "fat binaries", "MB")
        show.table("device code", columns, device_code)
    else:
        show.say("device code: none")
    libraries = map(_library_row, contents.libraries)
    show.table("libraries", ("library", "MB", "made by", "CPU features (instructions)"), libraries)
    needs = []
    for need in contents.needs:
        needs.append((need.who, need.name, need.when, need.answer, need.by or ""))
    show.table("imports", ("library", "needs", "on", "answered by", "member"), needs)


def _device_code(contents: WheelContents) -> Iterator[tuple[str, ...]]:
    """The rows of the table of code for GPUs."""
    for library in contents.libraries:
        for fatbin in library.fatbins:
            sass = " ".join(f"sm_{sm}" for sm in fatbin.sass) or "-"
            ptx = " ".join(f"compute_{sm}" for sm in fatbin.ptx) or "-"
            size = f"{fatbin.bytes / 1e6:.2f}"
            yield library.path, sass, ptx, str(fatbin.containers), size


def _library_row(library: Library) -> tuple[str, ...]:
    linker = "-"
    if library.linker:
        linker = f"MSVC linker {library.linker}"
    return library.path, f"{library.size / 1e6:.2f}", linker, _features_beyond(library)


def _features_beyond(library: Library) -> str:
    """The instructions of a library beyond its CPU level, or why they are not known."""
    code = library.instructions
    if code:
        counts = [f"{feature} {count}" for feature, (count, _) in code.beyond.items()]
        return code.not_checked or ", ".join(counts) or f"nothing beyond {code.level}"
    if library.error:
        return f"not read: {library.error}"
    if library.is_loadable:
        return "not decoded (--cpu)"
    return ""


def _floor(contents: WheelContents) -> str:
    """The oldest system that the libraries allow, as far as it follows from them."""
    linkers = {library.linker for library in contents.libraries if library.is_loadable}
    names = ", ".join(sorted(filter(None, linkers)))
    if names:
        return f"made by MSVC linker {names}: needs a Visual C++ runtime that is not older"
    if not contents.libraries and not contents.manylinux:
        return "no libraries that are read (ELF, PE)"
    return f"its libraries allow: {contents.manylinux or f'none: {contents.manylinux_problem}'}"


def run_repair(args: argparse.Namespace) -> int:
    """Write the repaired wheel, and say what was done."""
    # ten thousand members make no cycles, but would be searched for them again and again
    gc.disable()
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(
            f"{args.output} is not a folder", hint="give -o the folder for the repaired wheel"
        )
    options = _options(args)
    is_new = not args.output.exists()
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        with show.bytes_read() as progress:
            result = repair(args.wheel, args.output, options, progress)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # someone put something into it
                args.output.rmdir()
        raise
    findings = findings_of(result.wheel, Policy(), result.contents)
    open_findings = [finding.text for finding in findings]
    lines = [*_mended(result), *(f"not mended: {text}" for text in open_findings)]
    show.answer(args, {**result.to_json(), "not_mended": open_findings}, [*lines, result.wheel])
    gc.freeze()  # nor is there anything to be found at the end
    return 0


def _mended(result: RepairResult) -> Iterator[str]:
    """What was done to a wheel, and why a tag was not added."""
    for item in result.vendored:
        yield f"added {item.path} from {item.source}"
    for path in result.record_corrected[:_MAX_CORRECTED]:
        yield f"corrected the hash of {path} in RECORD"
    unnamed = len(result.record_corrected) - _MAX_CORRECTED
    if unnamed > 0:
        yield f"and of {unnamed} more files (--json names them)"
    tags = parse_wheel_name(result.wheel.name).tags
    reason = unread(tags)
    if reason and not result.tags:
        text = f"{reason}: none was added, and what they need is not known"
        if any(of_tag(tag.rpartition("-")[2]) for tag in tags):
            text += "; delocate adds it"
        yield text


def _options(args: argparse.Namespace) -> RepairOptions:
    """Options of the command line, or of the plan."""
    if args.plan is None:
        extra = {
            "exclude": args.exclude,
            "version": args.new_version,
            "requires": args.require,
            "opens": args.opens,
        }
        return RepairOptions(lib_dirs=args.lib_dir, into=args.into, **extra)
    used = {
        "--exclude": args.exclude,
        "--opens": args.opens,
        "--version": args.new_version,
        "--require": args.require,
    }
    for name, value in used.items():
        if value:
            raise UsageError(
                f"{name} cannot be given with --plan: the plan has it",
                hint="leave it out, or use --into in place of --plan",
            )
    from farm.plan.file import Plan
    from farm.run.repair_step import repair_options

    return repair_options(Plan.read(args.plan), args.wheel, args.lib_dir)


def run_verify(args: argparse.Namespace) -> int:
    """Check a wheel, and print what was found."""
    policy, waivers = policy_of(args)
    report = verify(args.wheel, policy, waivers=waivers, dependencies=args.dependency)
    if args.emulate:
        from farm.smoke.emulation import emulate

        report = emulate(report, args.wheel)
    if args.json:
        show.json_document(report.to_json())
        if report.passed:
            return 0
        return ExitCode.VERIFICATION_FAILED
    rows = [(check.id, check.status.replace("_", " "), check.seen) for check in report.checks]
    show.table(report.wheel, ("check", "status", "seen"), rows)
    for finding in report.findings:
        if finding.waived is not None:
            show.say(f"waived: {finding.text} ({finding.waived})")
    if not report.passed:
        from farm.run.verify_step import refusal

        raise refusal(report)
    return 0


def waivers_of(args: argparse.Namespace) -> list[Waiver]:
    """The waivers of `--waive`."""
    return [parse_waiver(text) for text in args.waive]


def policy_of(args: argparse.Namespace) -> tuple[Policy, list[Waiver]]:
    """The policy: the variant's, a file's, or without either that of every wheel."""
    waivers = waivers_of(args)
    if args.policy and args.variant:
        raise UsageError(
            "--policy and --variant exclude each other: a variant has a policy of its own"
        )
    if args.policy:
        policy_file = load_policy(args.policy)
        return policy_file.policy(), [*policy_file.waivers, *waivers]
    if args.variant:
        from farm.cli.selection import plan_of

        return plan_of(args)[2].verify, waivers
    return Policy(), waivers
