"""Plans of this repository's own channels, or of a test's project."""

from pathlib import Path

from farm.plan.file import Plan
from farm.plan.options import Choice
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant

ROOT = Path(__file__).parents[1]


def selectors(
    variant: str, package="torch", channel=None, platform="linux", **options
) -> BuildRequest:
    """A build by its words; options as the command line gives them."""
    chosen = {name: Choice(value, f"--{name}") for name, value in options.items()}
    return BuildRequest(Variant.parse(variant), package, platform, channel, chosen)


def plan_of(
    variant: str, package="torch", channel=None, platform="linux", *, project=ROOT, **options
) -> Plan:
    return resolve(project, selectors(variant, package, channel, platform, **options))
