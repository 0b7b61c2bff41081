"""Writes ci/matrix.schema.json, by which an editor checks and completes ci/matrix.yaml, from the
farm's own model.

    python -m tools.matrix_schema [--out FILE]

For maintainers: run it when the model in farm/plan/matrix.py or the names in the catalogue change.
A test says so when it was forgotten.
"""

from pathlib import Path
from typing import Any

from farm.plan.channel_text import REQUIRED, MatrixText
from tools.generated import schema_text, write

OUT = Path(__file__).parent.parent / "ci" / "matrix.schema.json"


def schema() -> str:
    """The JSON schema as text. Keys that a channel may take over are required only where it extends
    none.
    """
    document: dict[str, Any] = MatrixText.model_json_schema()
    document["$defs"]["ChannelText"] |= {
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": list(REQUIRED)},
    }
    return schema_text(document)


def main() -> None:
    write(__doc__, OUT, schema())


if __name__ == "__main__":
    main()
