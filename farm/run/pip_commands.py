"""What a user types to install a published wheel."""

import shlex

from farm.index.pins import install_words
from farm.index.reader import open_reader
from farm.index.store_urls import open_store
from farm.plan.file import Plan
from farm.run.workspace import Workspace


def pip_request(workspace: Workspace, plan: Plan, filename: str) -> tuple[str, tuple[str, ...]]:
    """The requirement of a plan's published wheel, and the words by which pip finds it and what it
    needs from its group, in no other index.
    """
    requirement, *source = words_of(workspace, plan.parsed_variant.group, filename)
    if requirement.startswith(f"{plan.package}=="):
        return requirement, tuple(source)
    return f"{plan.package}=={plan.version}", (requirement, *source)


def words_of(workspace: Workspace, group: str, *filenames: str) -> tuple[str, ...]:
    """The arguments of `pip install` for published wheels of a group; see `install_words`."""
    reader = open_reader(workspace.index_url)
    return install_words(reader.get, public_url(workspace, ""), group, *filenames)


def public_url(workspace: Workspace, key: str) -> str:
    """Where users find a key of the index."""
    if workspace.settings.index_public_url:
        return f"{workspace.settings.index_public_url.rstrip('/')}/{key}"
    return open_store(workspace.index_url).url(key)


def pip_line(requirement: str, source: tuple[str, ...]) -> str:
    """The command of a user."""
    if source and not source[0].startswith("-"):
        return shlex.join(["pip", "install", *source])  # addresses, the first is the requirement's
    return shlex.join(["pip", "install", requirement, *source])
