"""The pages for people: written by `farm site build`, and kept with the index by what changes it.

A change of the index never fails for their sake: the wheel is published, yanked or removed then,
and nobody should do that again.
"""

from collections.abc import Collection
from dataclasses import replace

from farm.base.errors import FarmError
from farm.index.reader import KEY
from farm.index.store_urls import open_store
from farm.plan.settings import load_settings
from farm.run.pip_commands import public_url
from farm.run.workspace import Workspace
from farm.site.files import SiteSource, build, update


def site_source(workspace: Workspace) -> SiteSource:
    """What the pages of a workspace's index follow from besides the index."""
    return SiteSource(project=workspace.project, root=public_url(workspace, ""))


def configured(workspace: Workspace) -> Workspace | None:
    """The workspace with the addresses of the project's `ci/farm.yaml`.

    Returns:
        None if its index is another one: the addresses on its pages are not known then.
    """
    settings = load_settings(workspace.project)
    configured_url = open_store(settings.index_at(workspace.project)).url("")
    if open_store(workspace.index_url).url("") != configured_url:
        return None
    return replace(workspace, settings=settings)


def refresh_site(workspace: Workspace, projects: Collection[str] | None = None) -> list[str]:
    """Write the pages for people after a change of the index, if it has any.

    Args:
        workspace: The workspace of the index.
        projects: What was changed, by normalised names; None: the whole index.

    Returns:
        The keys of the pages that changed. What prevents it is a note for the user.
    """
    try:
        store = open_store(workspace.index_url)
        if store.get(KEY) is None:
            return []
        addressed = configured(workspace)
        if addressed is not None and projects is None:
            return build(store, site_source(addressed))[1]
        if addressed is not None:
            return update(store, site_source(addressed), projects or ())
        problem = "this is not the index of ci/farm.yaml, which has the addresses on them"
    except FarmError as error:
        problem = str(error)
    workspace.watcher.note(
        f"the pages for people are as before: {problem}; farm site build writes them"
    )
    return []
