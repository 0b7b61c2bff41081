"""A repository at GitHub: the registration of its runners, and settings without which strangers could reach them.

Sources: GitHub Docs, "REST API endpoints for self-hosted runners", "Secure use reference", "Managing GitHub Actions
settings for a repository", "Managing environments for deployment".
"""

import re
from urllib.parse import urlsplit

from farm.base.errors import InfrastructureError
from farm.base.text import printable
from farm.engines.github_api import GithubApi
from farm.platforms.runner_service import SCRIPTS, Registration

RELEASE = "release"
"""The environment of the job that publishes, whose name the index's role trusts."""
SHOWN = 5  # of the branches and tags that may publish
EVERYBODY = "all_external_contributors"


def missing_settings(api: GithubApi) -> list[str]:
    """Settings that GitHub lacks, each with the place to set it.

    Raises:
        UsageError: The token may not read the settings.
        InfrastructureError: GitHub does not answer.
    """
    found = []
    repository = api.about()
    if repository.visibility == "public" and api.approval_policy() != EVERYBODY:
        found.append(
            "a pull request of a stranger can run on the self-hosted runners: Settings, Actions, General, "
            "'Require approval for all external contributors'"
        )
    if not api.pins_actions():
        found.append(
            "actions run that are not pinned: Settings, Actions, General, 'Require actions to be pinned to a "
            "full-length commit SHA'"
        )
    environment = api.environment(RELEASE)
    if environment is None:
        found.append(f"there is no environment {RELEASE}: Settings, Environments; with reviewers, and for main alone")
    elif environment.deployment_branch_policy is None:
        found.append(
            f"every branch may publish: Settings, Environments, {RELEASE}, 'Deployment branches and tags': main alone"
        )
    elif environment.deployment_branch_policy.custom_branch_policies:
        found += _wrong_branches(api, repository.default_branch)
    return found


def _wrong_branches(api: GithubApi, default: str) -> list[str]:
    """Branches besides the default one that may publish, or that the default one may not."""
    rules = [(rule.type, rule.name) for rule in api.deployment_rules(RELEASE)]
    if rules == [("branch", default)]:
        return []
    listed = ", ".join(f"{kind} {printable(name)}" for kind, name in rules[:SHOWN]) or "nothing"
    more = f" and {len(rules) - SHOWN} more" if len(rules) > SHOWN else ""
    where = f"Settings, Environments, {RELEASE}, 'Deployment branches and tags': the branch {default} alone"
    return [f"{listed}{more} may publish: {where}"]


def commands(api: GithubApi, what: Registration, site: str, *, ephemeral: bool) -> str:
    """A script that registers the machine and starts the runner; it holds a secret that GitHub gives for an hour.

    Args:
        api: Gives the secret; its token needs the right Administration: write.
        what: The machine.
        site: The address of GitHub's pages, such as `https://github.com`.
        ephemeral: The runner takes one job and is gone; else it is a service.

    Raises:
        UsageError: The token lacks the right.
        InfrastructureError: GitHub does not answer, or with something else than a secret.
    """
    script = SCRIPTS[what.platform]
    if ephemeral:
        return script.once.format(_plain(api.jit_config(what.name, what.labels)))
    return script.service(what, f"{site}/{api.repository}", _plain(api.registration_token()))


def site_of(api_url: str) -> str:
    """The address of the pages of the GitHub whose API is there: an Enterprise Server's API is below its own."""
    parts = urlsplit(api_url)
    return f"{parts.scheme}://{parts.netloc.removeprefix('api.')}"


def _plain(secret: str) -> str:
    """A secret that a shell takes as one word, whatever GitHub answered."""
    if not re.fullmatch(r"[A-Za-z0-9+/=_.-]{1,20000}", secret):
        raise InfrastructureError("GitHub's answer is not what its API documents: a secret with odd characters")
    return secret
