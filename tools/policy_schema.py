"""Writes farm/wheel/policy.schema.json, by which an editor or validator checks a policy and its waivers.

    python -m tools.policy_schema [--out FILE]

For maintainers: run it when the models in farm/wheel/policy.py change. A test says so when it was forgotten.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from farm.wheel.policyfile import PolicyFile
from tools.matrix_schema import without_titles

OUT = Path(__file__).parent.parent / "farm" / "wheel" / "policy.schema.json"


def schema() -> str:
    """The JSON schema as text."""
    made: dict[str, Any] = PolicyFile.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(without_titles(made), indent=2) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.parse_args().out.write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
