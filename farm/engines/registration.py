"""Registers a machine as a self-hosted runner: asks GitHub for the secret, and gives the commands for the machine.

Source: GitHub Docs, "REST API endpoints for self-hosted runners", "Secure use reference" (just-in-time runners).
"""

import re
from urllib.parse import urlsplit

from farm.base.errors import InfrastructureError, UsageError
from farm.engines.github_api import GithubApi
from farm.platforms.runner_service import SCRIPTS, Registration


def commands(api: GithubApi, what: Registration, site: str, *, ephemeral: bool) -> str:
    """A script that registers the machine and starts the runner; it holds a secret that GitHub gives for an hour.

    Args:
        api: Gives the secret; its token needs the right Administration: write.
        what: The machine.
        site: The address of GitHub's pages, such as `https://github.com`.
        ephemeral: The runner takes one job and is gone; else it is a service.

    Raises:
        UsageError: A runner of that name is there already, or the token lacks the right.
        InfrastructureError: GitHub does not answer, or with something else than a secret.
    """
    if not what.replace and any(each.name.lower() == what.name.lower() for each in api.runners()):
        raise UsageError(f"the repository has a runner called {what.name} already", hint="--replace takes its place")
    script = SCRIPTS[what.platform]
    if ephemeral:
        return script.once(what, _plain(api.jit_config(what.name, what.labels)))
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
