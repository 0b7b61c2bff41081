"""Writes farm/wheel/policy.schema.json, by which an editor or validator checks a policy and its waivers.

    python -m tools.policy_schema [--out FILE]

For maintainers: run it when the models in farm/wheel/policy.py change. A test says so when it was forgotten.
"""

from pathlib import Path

from farm.wheel.policy import PolicyFile
from tools.generated import schema_text, write

OUT = Path(__file__).parent.parent / "farm" / "wheel" / "policy.schema.json"


def schema() -> str:
    """The JSON schema as text."""
    return schema_text(PolicyFile.model_json_schema())


def main() -> None:
    write(__doc__, OUT, schema())


if __name__ == "__main__":
    main()
