"""Helpers of the tools that write files which follow from the code (`make generate`)."""

import argparse
import json
from pathlib import Path
from typing import Any


def write(description: str | None, default: Path, text: str) -> None:
    """The command line of such a tool: writes `text` to `--out`, by default to the file's place in
    the checkout.
    """
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(description or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=default)
    parser.parse_args().out.write_text(text, encoding="utf-8")


def schema_text(made: dict[str, Any]) -> str:
    """A JSON schema of pydantic's as text."""
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(_without_titles(made), indent=2) + "\n"


def _without_titles(node: Any) -> Any:
    """Pydantic titles each key with the key itself; editors show the descriptions."""
    if isinstance(node, dict):
        return {
            k: _without_titles(v)
            for k, v in node.items()
            if not (k == "title" and isinstance(v, str))
        }
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    return node
