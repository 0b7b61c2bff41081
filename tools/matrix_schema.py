"""Writes ci/matrix.schema.json, by which an editor checks and completes ci/matrix.yaml, from the farm's own model.

    python -m tools.matrix_schema [--out FILE]

For maintainers: run it when the model in farm/matrix/shape.py or the names in the catalogue change. A test says so
when it was forgotten.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from farm.matrix import REQUIRED
from farm.matrix.shape import MatrixText

OUT = Path(__file__).parent.parent / "ci" / "matrix.schema.json"


def schema() -> str:
    """The JSON schema as text. Keys that a channel may take over are required only where it extends none."""
    made: dict[str, Any] = MatrixText.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["$defs"]["ChannelText"] |= {"if": {"not": {"required": ["extends"]}}, "then": {"required": list(REQUIRED)}}
    return json.dumps(without_titles(made), indent=2) + "\n"


def without_titles(node: Any) -> Any:
    """Pydantic titles each key with the key itself; editors show the descriptions."""
    if isinstance(node, dict):
        return {k: without_titles(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
    return [without_titles(item) for item in node] if isinstance(node, list) else node


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.parse_args().out.write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
