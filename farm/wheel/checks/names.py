"""The check `names`: the file name, METADATA, WHEEL and the policy say the same."""

import posixpath

from farm.base.requirement import serves
from farm.wheel.checks.abi import MODULE_SUFFIX
from farm.wheel.checks.subject import Subject, outcome
from farm.wheel.library import Contents
from farm.wheel.metadata import WheelName, parse_wheel_name, same_name, same_version
from farm.wheel.report import Check, Finding
from farm.wheel.tags import level_of_tag

_RENAME = "repair the wheel with the right version; never rename a wheel by hand"


def check(subject: Subject) -> Check:
    """Check that all parts of a wheel agree on its name, version, Python and tags."""
    info = subject.info
    name = parse_wheel_name(subject.filename)
    problems = _contradictions(name, subject)
    problems += _case_of_tags(name)
    if subject.policy.python:
        problems += _python_tags(name, subject.policy.python, subject.contents)

    findings = [_differ(info.folder, problem) for problem in problems]
    if _by_level(name.tags) != _by_level(info.tags):
        differing = ", ".join(sorted(name.tags ^ info.tags)[:5])
        findings.append(_tags_differ(info.folder, differing))
    return outcome("names", findings, subject.filename)


def _differ(where: str, what: str) -> Finding:
    return Finding(
        check="names",
        where=where,
        what=what,
        why="pip refuses such a wheel, or installs it for a Python or under a version that it is "
        "not for",
        fix=_RENAME,
    )


def _tags_differ(where: str, tags: str) -> Finding:
    return Finding(
        check="names",
        where=where,
        what=f"the tags in the file name and in WHEEL differ: {tags}",
        why="pip goes by the file name; `wheel pack`, and what else reads WHEEL, take it for "
        "another wheel",
        fix=_RENAME,
    )


def _contradictions(name: WheelName, subject: Subject) -> list[str]:
    info = subject.info
    policy = subject.policy
    folder_name, _, folder_version = info.stem.partition("-")
    claims = [
        ("METADATA", info.name, info.version),
        ("the .dist-info folder", folder_name, folder_version),
        ("the policy", policy.name or name.name, policy.version or name.version),
    ]
    problems = []
    for source, its_name, its_version in claims:
        if not same_name(name.name, its_name):
            problems.append(f"the file name says {name.name}, {source} says {its_name}")
        if not same_version(name.version, its_version):
            problems.append(
                f"the file name says version {name.version}, {source} says {its_version}"
            )
    return problems


def _case_of_tags(name: WheelName) -> list[str]:
    tags = "-".join(name.parts[-3:])
    if tags == tags.lower():
        return []
    return [f"the tags {tags} are not in lower case, and uv knows no others"]


def _by_level(tags: frozenset[str]) -> set[str]:
    """The tags, each level of manylinux under one of its names: manylinux2014 is manylinux_2_17
    (PEP 600).
    """
    normal = set()
    for tag in tags:
        python_and_abi, _, platform = tag.rpartition("-")
        level = level_of_tag(platform)
        if level is None:
            normal.add(tag)
        else:
            normal.add(f"{python_and_abi}-{level[0].name}_{level[1]}")
    return normal


def _python_tags(name: WheelName, python: str, contents: Contents) -> list[str]:
    """The tags of a file name that are for other Pythons than the promised one."""
    bound_to_python = _is_bound_to_python(contents)
    promised_tag = f"py{python.removeprefix('cp')}"
    unfit = set()
    serves_any_abi = False
    for tag in name.tags:
        python_tag, abi, _ = tag.split("-")
        for_any_python = python_tag.startswith("py")
        if serves(python_tag, abi, promised_tag) and not (bound_to_python and for_any_python):
            serves_any_abi = serves_any_abi or abi == "none"
        else:
            unfit.add(f"{python_tag}-{abi}")

    # `py2.py3-none`: the first does no harm beside the second.
    if serves_any_abi:
        unfit.discard("py2-none")
    return [f"it is for {pair}; promised is {python}" for pair in sorted(unfit)]


def _is_bound_to_python(contents: Contents) -> bool:
    """True if a library is named after its Python: others would install `py3-none` in vain."""
    for library in contents.libraries:
        if library.is_loadable and MODULE_SUFFIX.search(posixpath.basename(library.path)):
            return True
    return False
