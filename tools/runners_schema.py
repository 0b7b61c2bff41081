"""Writes ci/runners.schema.json, by which an editor checks and completes ci/runners.yaml, from the
farm's own model.

    python -m tools.runners_schema [--out FILE]

For maintainers: run it when the models in farm/plan/settings.py change. A test says so when it was
forgotten.
"""

from pathlib import Path

from farm.plan.settings import Runners
from tools.generated import schema_text, write

OUT = Path(__file__).parent.parent / "ci" / "runners.schema.json"


def schema() -> str:
    """The JSON schema as text."""
    return schema_text(Runners.model_json_schema())


def main() -> None:
    write(__doc__, OUT, schema())


if __name__ == "__main__":
    main()
