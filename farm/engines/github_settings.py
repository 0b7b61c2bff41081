"""Settings of a repository at GitHub without which strangers could run code on its runners, or
publish.
"""

from farm.base.text import first_of, printable
from farm.engines.github_api import GithubApi

RELEASE = "release"  # the environment of the job that publishes, whose name the index's role trusts
SHOWN = 5  # of the branches and tags that may publish
EVERYBODY = "all_external_contributors"
APPROVAL = "/actions/permissions/fork-pr-contributor-approval"


def missing_settings(api: GithubApi) -> list[str]:
    """Settings that GitHub lacks, each with the place to set it; UsageError: the token may not read
    them.
    """
    missing = []
    repository = api.setting("") or {}
    public = repository.get("visibility", "public") == "public"
    if public and (api.setting(APPROVAL) or {}).get("approval_policy") != EVERYBODY:
        missing.append(
            "a pull request of a stranger can run on the self-hosted runners: Settings, Actions, "
            "General, "
            "'Require approval for all external contributors'"
        )
    if not (api.setting("/actions/permissions") or {}).get("sha_pinning_required"):
        missing.append(
            "actions run that are not pinned: Settings, Actions, General, 'Require actions to be "
            "pinned to a "
            "full-length commit SHA'"
        )
    environment = api.setting(f"/environments/{RELEASE}")
    if environment:
        policy = environment.get("deployment_branch_policy")
    else:
        policy = None
    if environment is None:
        missing.append(
            f"there is no environment {RELEASE}: Settings, Environments; with reviewers, and for "
            "main alone"
        )
    elif policy is None:
        missing.append(
            f"every branch may publish: Settings, Environments, {RELEASE}, 'Deployment branches "
            "and tags': main alone"
        )
    elif policy["custom_branch_policies"]:
        missing += _wrong_branches(api, str(repository.get("default_branch", "main")))
    return missing


def _wrong_branches(api: GithubApi, default: str) -> list[str]:
    """Branches besides the default one that may publish, or that the default one may not."""
    rules = [(rule.type, rule.name) for rule in api.deployment_rules(RELEASE)]
    if rules == [("branch", default)]:
        return []
    names = [f"{kind} {printable(name)}" for kind, name in rules]
    branches = first_of(names, SHOWN) or "nothing"
    where = (
        f"Settings, Environments, {RELEASE}, 'Deployment branches and tags': the branch "
        f"{default} alone"
    )
    return [f"{branches} may publish: {where}"]
