"""The dependencies step: pages of links to what a published wheel needs, where its group does not list that yet."""

from packaging.utils import canonicalize_name

from farm.base.errors import FarmError
from farm.index.backends import open_store
from farm.index.dependencies import link_dependencies, needs_of
from farm.index.layout import metadata_key
from farm.index.pages import read_catalogue
from farm.index.stores import Store
from farm.run.report import Outcomes
from farm.run.sources import pip_index
from farm.run.workspace import Workspace


def link_missing(workspace: Workspace, group: str, filename: str, outcomes: Outcomes) -> None:
    """Link what the published wheel needs, from pip's index, so that `pip install --index-url` of its group is enough.

    What has a marker does not count: it may not be needed here. Where pip's index does not have it or does not
    answer, that is the step's result, and the run goes on: the wheel is published, and installers name what they lack.
    """
    store = open_store(workspace.index_url)
    lacking = _lacking(store, group, filename)
    if not lacking:
        return
    with outcomes.timed("dependencies", workspace.watcher) as step:
        try:
            link_dependencies(store, pip_index(), group=group)
        except FarmError as error:
            step.outcome = "not run"
            step.result = f"not linked: {error}; farm index dependencies --group {group} links them"
        else:
            step.result = f"linked {', '.join(lacking)}, and what they need"


def _lacking(store: Store, group: str, filename: str) -> list[str]:
    metadata, listed = store.get(metadata_key(filename)), read_catalogue(store)[0].names(group)
    needs = needs_of(metadata.data) if metadata else []
    return sorted({canonicalize_name(need.name) for need in needs if need.marker is None} - listed)
