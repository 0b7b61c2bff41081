"""What a user types to install a published wheel."""

import shlex

from packaging.metadata import parse_email

from farm.base.requirement import read_requirement
from farm.index.backends import open_store
from farm.index.layout import metadata_key
from farm.plan.file import Plan
from farm.run.workspace import Workspace


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
