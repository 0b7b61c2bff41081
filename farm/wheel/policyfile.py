"""A policy with its waivers as a YAML file, for wheels that no plan describes: `farm verify WHEEL --policy FILE`."""

from pathlib import Path

from farm.base.yamlfile import load
from farm.wheel.policy import Policy, Waiver


class PolicyFile(Policy):
    """A policy file: the promises, and the findings that are accepted.

    Attributes:
        waivers: Findings that are accepted, each with its reason.
    """

    waivers: tuple[Waiver, ...] = ()

    def policy(self) -> Policy:
        """Without the waivers."""
        return Policy.model_validate(self.model_dump(exclude={"waivers"}))


def load_policy(path: Path) -> PolicyFile:
    """Read a policy.

    Raises:
        UsageError: The file is not YAML, or a key or value in it is wrong; the message names the line.
    """
    return load(path, PolicyFile)
