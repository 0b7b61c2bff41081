"""The steps on a wheel that was built: repair, verify, publish; and what the index has before a
build.
"""

import hashlib
import json
import shlex
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version

from farm import __version__
from farm.base.errors import (
    BuildFailedError,
    FarmError,
    InfrastructureError,
    PublishRefusedError,
    SmokeFailedError,
    UsageError,
    VerificationFailedError,
)
from farm.base.hashes import sha256_of
from farm.base.requirement import read_requirement
from farm.index.admission import PYPI_RULES, Admission
from farm.index.backends import open_store
from farm.index.layout import json_key, metadata_key, record_key
from farm.index.page_writer import complete_publish
from farm.index.pages import parse_page
from farm.index.publish import NameTakenError, PublishResult, publish
from farm.index.records import PREDICATE, Record, parse_record
from farm.index.stores import SCRATCH, Progress, Store
from farm.plan.environment import absent_features, feature_text
from farm.plan.file import Plan, SourcePlan
from farm.plan.recipe import folder, recipe
from farm.run.backends import engine_kind
from farm.run.build import the_wheel
from farm.run.inputs import BuildInputs
from farm.run.journal import Request, Run
from farm.run.smoke import SmokeOptions, passed_mark, serves_plan, smoke
from farm.run.workspace import Outcomes, Step, Workspace, journal_path, open_journal
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.policy import Report
from farm.wheel.repair import LibraryWheel, RepairOptions, RepairResult, repair
from farm.wheel.verify import verify


def repair_built(plan: Plan, built: Path, dest: Path) -> RepairResult:
    """Repair what a build left in `built` (`wheel/` and `lib/`) into the folder `dest`, which is
    made anew.
    """
    wheel = the_wheel(built / "wheel")
    libraries = built / "lib"  # engines that hand over files alone leave an empty folder out
    options = repair_options(plan, wheel, [libraries] if libraries.is_dir() else [])
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir()
    return repair(wheel, dest, options)


def repair_options(plan: Plan, wheel: Path, lib_dirs: list[Path]) -> RepairOptions:
    """Options of the repair of a wheel, as the plan has them; BuildFailedError: it is of another
    package or release.
    """
    _check_promise(plan, wheel)
    return RepairOptions(
        lib_dirs=lib_dirs,
        into=None if plan.repair == "tools" else plan.vendor_into,
        exclude=plan.exclude,
        version=plan.version,
        requires=plan.requires,
        opens=plan.opens,
        description=feature_text(plan.features, plan.without),
        library_wheels=[
            LibraryWheel(
                wheel.requirement, wheel.folder, tuple(wheel.libraries), tuple(wheel.requires)
            )
            for wheel in plan.library_wheels
        ],
    )


def _check_promise(plan: Plan, wheel: Path) -> None:
    """Refuse another package, and another release, as after one whose recipe still has the old
    number.

    A build that does not know its release says 0 or one of development, without git for instance;
    the files of PyTorch and of its companions say a0 in every release.
    """
    name = parse_wheel_name(wheel.name)
    if name.name != canonicalize_name(plan.package):
        raise BuildFailedError(
            f"the build made {name.parts[0]}, and the recipe's package is {plan.package}",
            hint=f"correct package or source of {folder(plan.recipe) / 'recipe.yaml'}",
        )
    built = Version(name.version)
    wanted = Version(plan.version)
    parts = [
        each.base_version if built.pre == ("a", 0) else each.public for each in (built, wanted)
    ]
    version, expected = map(canonicalize_version, parts)
    known = any(built.release) and not built.is_devrelease
    if known and version != expected:
        raise BuildFailedError(
            f"the build made {plan.package} {built}, and the recipe's version is {wanted.public}",
            hint=f"correct version or source of {folder(plan.recipe) / 'recipe.yaml'}",
        )


def check_wheel(
    wheel: Path, plan: Plan, report_file: Path, dependencies: Sequence[Path] = ()
) -> Report:
    """Verify a wheel against its plan, with the wheels that it leaves libraries to; the report is
    in `report_file`.
    """
    report = _decided(verify(wheel, plan.verify, dependencies=dependencies), wheel)
    # Written before it is judged: a wheel that is refused needs its report most.
    report_file.write_text(report_text(report), encoding="utf-8")
    if not report.passed:
        raise refusal(report, report_file)
    return report


def _decided(report: Report, wheel: Path) -> Report:
    """The report, with what it leaves open decided by loading those libraries on an emulated
    CPU.
    """
    cpu = report.check("cpu")
    if not cpu.undecided:
        return report
    from farm.smoke.emulation import emulate  # noqa: PLC0415 (slow to import, and seldom needed)

    try:
        return emulate(report, wheel, only=cpu.undecided)
    except (UsageError, InfrastructureError) as error:
        return report.replaced(cpu.model_copy(update={"emulated": f"not emulated: {error}"}))


def report_text(report: Report) -> str:
    """The text of `verify.json`."""
    return json.dumps(report.to_json(), indent=1) + "\n"


def refusal(report: Report, report_file: Path | None = None) -> VerificationFailedError:
    """The error that says everything that a report found."""
    lines: list[str] = []
    held = [finding for finding in report.findings if finding.waived is None]
    # Said once of findings in a row that have it in common: a CPU's extensions are ten.
    for (why, fix), findings in groupby(held, key=lambda finding: (finding.why, finding.fix)):
        lines += [f"  - {finding.text}" for finding in findings]
        lines.append(f"    why: {why}\n    fix: {fix}")
    return VerificationFailedError(
        f"{report.wheel} does not hold what its name promises:\n" + "\n".join(lines),
        hint=f"the whole report: {report_file}" if report_file else None,
    )


def summary(report: Report) -> str:
    """`archive, names, record … passed`, what was not run, and what an emulated CPU showed."""
    by_status: dict[str, list[str]] = {}
    for check in report.checks:
        by_status.setdefault(check.status.replace("_", " "), []).append(check.id)
    cpu = report.check("cpu")
    emulated = [cpu.seen] if cpu.emulated else []
    return "; ".join(
        [*(f"{', '.join(ids)} {status}" for status, ids in by_status.items()), *emulated]
    )


NOTHING = BuildInputs()


def publish_wheel(
    workspace: Workspace,
    plan: Plan,
    wheel: Path,
    report: Report,
    *,
    given: BuildInputs = NOTHING,
    run: str | None = None,
    policy: Admission = PYPI_RULES,
    progress: Progress | None = None,
) -> PublishResult:
    """Publish a verified wheel into the group of its variant and the root of its channel.

    `report` is verify's about this very file; `given` and `run`, for the provenance, what the build
    had beside its plan; `policy`: what the index takes beyond PyPI's rules; `progress` gets the
    bytes that are stored. PublishRefusedError: the report is of another file or of a failure, or
    the index refuses.
    """
    # Hashed here once more: the report may be of a file that was changed since.
    if not report.passed or report.sha256 != sha256_of(wheel):
        if report.passed:
            reason = "its report is of another file"
        else:
            reason = "it failed verification"
        raise PublishRefusedError(
            f"{wheel.name} is not published: {reason}", hint=f"farm verify {wheel.name}"
        )
    try:
        return publish(
            open_store(workspace.index_url),
            wheel,
            group=plan.parsed_variant.group,
            upload_time=datetime.now(UTC),
            provenance={
                "plan": plan.digest,
                "verified": report.sha256,
                "report": findings_of(report),
                "channel": plan.channel,
                **({"cuda-libraries": plan.cuda_libraries} if plan.cuda_libraries else {}),
                **({"without": lacking} if (lacking := absent_features(plan.without)) else {}),
                PREDICATE: predicate(plan, report, given, run=run),
                **_waived(report),
            },
            channel=plan.channel,
            policy=policy,
            progress=progress,
        )
    except NameTakenError as error:  # by other bytes: a rebuild number gives a new name
        error.hint = (
            f"{error.hint}: run it again with --rebuild {int(plan.options['rebuild'] or 0) + 1}"
        )
        raise


def findings_of(report: Report) -> dict[str, Any]:
    """The digest of verify's report for the index, and the promises about code that it found
    kept.
    """
    kept = {check.id for check in report.checks if check.status in ("passed", "waived")}
    policy = report.policy
    found: dict[str, Any] = {"sha256": _digest_of(report)}
    if "sass" in kept and policy.sass is not None:
        found["sass"] = [str(sm) for sm in policy.sass]
    if "ptx" in kept and policy.ptx:
        found["ptx"] = [str(sm) for sm in policy.ptx]
    if "cpu" in kept and policy.cpu:
        found["cpu"] = policy.cpu
    return found


def _digest_of(report: Report) -> str:
    """The sha256 of verify.json, as it is in the folder of the run."""
    return hashlib.sha256(report_text(report).encode()).hexdigest()


def _waived(report: Report) -> dict[str, list[dict[str, object]]]:
    """Accepted findings for the index: the reasons that were used, and how many findings each
    covers.
    """
    used: Counter[tuple[str, str]] = Counter(
        (f.check, f.waived) for f in report.findings if f.waived is not None
    )
    listed = [
        {"check": check, "reason": why, "findings": n} for (check, why), n in sorted(used.items())
    ]
    return {"waivers": listed} if listed else {}


def pip_source(workspace: Workspace, group: str, *, more: bool = False) -> tuple[str, ...]:
    """The options by which pip finds the wheels of one variant group; `more`: they need others, of
    pip's own index.

    A folder, a bucket behind a web server that answers folders with their index.html, and one with
    `pages=slash` are an index; other buckets do not answer folders.
    """
    return (
        "--extra-index-url" if more else "--index-url",
        public_url(workspace, f"whl/{group}/simple/"),
    )


def needs_more(workspace: Workspace, filename: str) -> bool:
    """True if a published wheel requires other packages, without an extra."""
    metadata = open_store(workspace.index_url).get(metadata_key(filename))
    if metadata:
        requires = parse_email(metadata.data)[0].get("requires_dist", [])
    else:
        requires = []
    return any("extra" not in str(read_requirement(line).marker or "") for line in requires)


def pip_request(workspace: Workspace, plan: Plan, filename: str) -> tuple[str, tuple[str, ...]]:
    """The requirement of a plan's published wheel, and the options by which pip finds it."""
    source = pip_source(workspace, plan.parsed_variant.group, more=needs_more(workspace, filename))
    return f"{plan.package}=={plan.version}", source


def public_url(workspace: Workspace, key: str) -> str:
    """Where users find a key of the index."""
    if workspace.settings.index_public_url:
        return f"{workspace.settings.index_public_url.rstrip('/')}/{key}"
    return open_store(workspace.index_url).url(key)


def pip_line(requirement: str, source: tuple[str, ...]) -> str:
    """The command of a user."""
    return shlex.join(["pip", "install", requirement, *source])


BUILD_TYPE = "urn:torch-farm:wheel:v1"


def predicate(
    plan: Plan, report: Report, given: BuildInputs, *, run: str | None = None
) -> dict[str, Any]:
    """The predicate of the provenance for the wheel of a plan; `run`: the id of its run, where
    there was one.
    """
    dependencies: list[dict[str, Any]] = [_dependency("source", plan.source)]
    dependencies += [_dependency(part.into, part.source) for part in plan.parts]
    if given.image is not None:
        # Docker writes `sha256:…`, SLSA the algorithm as the key of a mapping.
        digest = {"sha256": given.image.removeprefix("sha256:")}
        dependencies.append({"name": "image", "uri": plan.base, "digest": digest})
    if plan.python:
        dependencies.append(
            {"name": "python", "uri": plan.python.url, "digest": {"sha256": plan.python.sha256}}
        )
    for archive in plan.toolkit.archives if plan.toolkit else ():
        dependencies.append(
            {"name": archive.component, "uri": archive.url, "digest": {"sha256": archive.sha256}}
        )
    if plan.toolkit:
        dependencies += [_dependency(str(wheel.package), wheel) for wheel in plan.toolkit.wheels]
    dependencies += [_dependency(str(wheel.package), wheel) for wheel in plan.build_requires]
    dependencies += [
        {"name": name, "digest": {"sha256": digest}}
        for name, digest in sorted(given.wheels.items())
    ]
    # Without a digest: no one knows what was in it. A verifier should see that it was there.
    if given.cache is not None:
        dependencies.append(
            {"name": "local compiler cache", "annotations": {"volume": given.cache}}
        )
    parameters = {
        "package": plan.package,
        "version": plan.version,
        "variant": plan.variant,
        "platform": plan.platform,
        "channel": plan.channel,
    }
    if plan.toolkit:
        parameters["toolkit"] = f"{plan.toolkit.provider} {plan.toolkit.cuda}"
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            # External is what someone asked for, internal what followed from it (SLSA v1.0,
            # BuildDefinition).
            "externalParameters": parameters,
            "internalParameters": {"plan": {"sha256": plan.digest}},
            # In a ResourceDescriptor a field that says nothing is absent, not null.
            "resolvedDependencies": [
                {name: value for name, value in each.items() if value is not None}
                for each in dependencies
            ],
        },
        "runDetails": {
            "builder": {"id": "urn:torch-farm", "version": {"torch-farm": __version__}},
            "metadata": {"invocationId": run} if run else {},
            "byproducts": [{"name": "verify.json", "digest": {"sha256": _digest_of(report)}}],
        },
    }


def _dependency(name: str, source: SourcePlan) -> dict[str, Any]:
    """Fetched sources, by commit or sha256; a wheel, sdist or Debian's tarball by its package URL
    (purl) as well.
    """
    if source.kind == "git":
        uri = f"git+{source.url}@{source.tag}"
        digest = {"gitCommit": source.commit}
    elif source.kind == "path":
        uri = None
        digest = {"sha256": source.digest}
    elif source.kind == "archive":
        uri = source.url
        digest = {"sha256": source.sha256}
    else:
        kind = "deb/debian" if source.kind.startswith("debian-") else "pypi"
        uri = f"pkg:{kind}/{source.package}?file_name={quote(str(source.file))}"
        digest = {"sha256": source.sha256}
    return {"name": name, "uri": uri, "digest": digest}


def find_published(workspace: Workspace, plan: Plan) -> Record | None:
    """The record of the wheel that was built by this very plan and verified, and that users can
    install now.

    None where there is none, where a run of the plan has not ended, where its bytes are not those
    that were verified, or where it is yanked. PublishRefusedError: it is there in the other form,
    with CUDA's libraries where this plan needs NVIDIA's wheels or the other way round.
    """
    if journal_path(workspace.project, workspace.settings).exists():  # asking makes no folder
        with open_journal(workspace.project, workspace.settings) as journal:
            if journal.unfinished(plan.digest, of_same_form(plan)):
                return None  # a run whose controller was killed is resumed and ended first
    return record_of(workspace, plan)


def record_of(workspace: Workspace, plan: Plan) -> Record | None:
    """A published wheel of the plan, whatever runs there are; PublishRefusedError as for
    `find_published`.
    """
    store = open_store(workspace.index_url)
    record = next(
        (r for r in _records(store, plan) if r.provenance.get("plan") == plan.digest), None
    )
    # `verified` is the sha256 that verify read: a file that was replaced since has another.
    if (
        record is None
        or record.provenance.get("verified") != record.sha256
        or not _is_offered(store, plan, record)
    ):
        return None
    # A record of an earlier version of the farm does not say which form it is.
    form = record.provenance.get("cuda-libraries", plan.cuda_libraries)
    if form != plan.cuda_libraries:
        raise PublishRefusedError(
            f"{record.filename} is published with `cuda_libraries: {form}`, this plan has "
            f"{plan.cuda_libraries}",
            hint=f"run it again with --rebuild {int(plan.options['rebuild'] or 0) + 1}",
        )
    return record


def of_same_form(plan: Plan) -> Callable[[Run], bool]:
    """Picks the runs that make the wheel with CUDA's libraries from where this plan has them
    from.
    """
    return lambda run: bool(run.plan.get("library_wheels")) == bool(plan.library_wheels)


def listed(store: Store, plan: Plan) -> list[str]:
    """The file names of the plan's version on the page of its package; makers of wheels spell names
    differently.
    """
    key = json_key(plan.parsed_variant.group, canonicalize_name(plan.package))
    page = store.get(key)
    if page:
        names = [file.filename for file in parse_page(page.data, key).files]
    else:
        names = []
    version = str(Version(plan.version))  # `2024.01` of a recipe is `2024.1` in the name of a file
    return [name for name in names if str(parse_wheel_name(name).version) == version]


def _records(store: Store, plan: Plan) -> Iterator[Record]:
    """The records of the files of the plan's version."""
    for key in map(record_key, listed(store, plan)):
        if found := store.get(key):
            yield parse_record(found.data, key)


def _is_offered(store: Store, plan: Plan, record: Record) -> bool:
    """The page of the variant's group lists the wheel, with the same hash and not yanked, and the
    file is there.
    """
    key = json_key(plan.parsed_variant.group, record.project)
    page = store.get(key)
    if page is None or store.stat(f"whl/files/{record.filename}") is None:
        return False
    files = {file.filename: file for file in parse_page(page.data, key).files}
    file = files.get(record.filename)
    return file is not None and file.hashes.sha256 == record.sha256 and file.yanked is False


def offer(
    workspace: Workspace, plan: Plan, record: Record, outcomes: Outcomes
) -> tuple[str, tuple[str, ...]]:
    """Bring the pages to the end that a publisher who failed did not reach; returns what
    `pip_request` does.
    """
    group = plan.parsed_variant.group
    with outcomes.timed("publish", workspace.watcher) as step:
        complete_publish(open_store(workspace.index_url), group, record.project)
        step.result = (
            "already there, from the same plan: "
            f"{public_url(workspace, f'whl/files/{record.filename}')}"
        )
    requirement, source = pip_request(workspace, plan, record.filename)
    outcomes.pip_line = pip_line(requirement, source)
    return requirement, source


def use_published(workspace: Workspace, plan: Plan, record: Record, *, test: bool) -> Outcomes:
    """The result of a run; with `test` its smoke test is run, unless it passed here;
    SmokeFailedError: it failed.
    """
    outcomes = Outcomes(wheel=None)
    requirement, source = offer(workspace, plan, record, outcomes)
    if not test:
        return outcomes
    folder = workspace.artifacts / "smoke" / f"{plan.package}-{plan.version}"
    if passed_mark(workspace, plan).is_file():
        outcomes.steps.append(Step("smoke", result="passed here before; `farm smoke` repeats it"))
        return outcomes
    folder.mkdir(parents=True, exist_ok=True)
    options = SmokeOptions(filenames=(record.filename,))
    failed = smoke(workspace, plan, folder, outcomes, requirement, source, options)
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {folder}/smoke*.json")
    return outcomes


ROOM = (
    1 << 30
)  # bytes that this machine keeps free for a run that builds elsewhere: its wheel, twice, and its logs


def check_index(workspace: Workspace, request: Request) -> None:
    """InfrastructureError where nothing can be put into the index; once for all runs of a
    command.
    """
    if not request.publishes:
        return
    store = open_store(workspace.index_url)
    key = f"{SCRATCH}{uuid.uuid4().hex}"
    try:
        store.create(key, b"", content_type="application/octet-stream")
        store.discard(key)
    except (OSError, FarmError) as error:
        if isinstance(error, OSError):
            why = f"{error.filename}: {error.strerror}"
        else:
            why = str(error)
        raise InfrastructureError(
            f"the index {workspace.index_url} cannot be written: {why}",
            hint="correct its rights or `index` in ci/farm.yaml, or submit with --no-publish",
        ) from error


def check_plan(workspace: Workspace, plan: Plan, request: Request) -> None:
    """Check that there is room for a build (InfrastructureError), and that its name is free
    (PublishRefusedError).
    """
    needed = ROOM
    if engine_kind(request.on).traits.on_this_machine:
        needed = max(needed, int(recipe(plan.recipe).disk_gb * 1e9))
    folder = next(
        place
        for place in (workspace.artifacts, *workspace.artifacts.absolute().parents)
        if place.exists()
    )
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InfrastructureError(
            f"{folder}: {free / 1e9:.1f} GB are free, and a run of {plan.package} needs "
            f"{needed / 1e9:.1f}",
            hint="`farm clean --dry-run` shows what can go; or name another folder in "
            "ci/farm.yaml (artifacts)",
        )
    if request.publishes:
        _check_name(workspace, plan)


def _check_name(workspace: Workspace, plan: Plan) -> None:
    for record in _records(open_store(workspace.index_url), plan):
        built = record.provenance.get("plan")
        if serves_plan(record.filename, plan) and built not in (None, plan.digest):
            raise PublishRefusedError(
                f"{record.filename} is in the index already, from another build (plan "
                f"{str(built)[:12]}, this one is "
                f"{plan.digest[:12]}); nothing was built",
                hint=f"run it again with --rebuild {int(plan.options.get('rebuild') or 0) + 1}",
            )
