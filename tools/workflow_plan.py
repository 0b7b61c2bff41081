"""Outputs of the plan jobs of the workflows, one `name=value` a line, for $GITHUB_OUTPUT.

    python3 tools/workflow_plan.py chunk MATRIX.json NUMBER    # build=… and smoke=…, each
    `{"include": […]}` python3 tools/workflow_plan.py labels MATRIX.json [JSON]   # labels=…: those
    given, else the first smoke test's

MATRIX.json is what `farm matrix --format github` printed. Standard library only. What people typed
is checked: an output is one line of JSON, whatever they typed.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

LABEL = re.compile(r"[A-Za-z0-9_.-]{1,60}")


def chunk(matrix: dict[str, list[list[dict[str, Any]]]], number: str) -> dict[str, Any]:
    """The matrices of one chunk.

    Raises:
        ValueError: There is no such chunk.
    """
    chunks = len(matrix["build"])
    if not re.fullmatch(r"[0-9]{1,3}", number) or int(number) >= chunks:
        raise ValueError(f"there is no chunk {number[:20]!r}: there are {chunks}, from 0 on")
    return {kind: {"include": matrix[kind][int(number)]} for kind in ("build", "smoke")}


def labels(matrix: dict[str, list[list[dict[str, Any]]]], given: str) -> dict[str, Any]:
    """The labels that the smoke test's runner must carry.

    Raises:
        ValueError: What was given is not a JSON list of labels.
    """
    if not given:
        return {"labels": matrix["smoke"][0][0]["runs_on"]}
    words = json.loads(given)
    if (
        not isinstance(words, list)
        or not words
        or not all(isinstance(x, str) and LABEL.fullmatch(x) for x in words)
    ):
        raise ValueError("labels: expected a JSON list of labels")
    return {"labels": words}


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("what", choices=["chunk", "labels"])
    parser.add_argument("matrix", type=Path)
    parser.add_argument("given", nargs="?", default="")
    args = parser.parse_args()
    matrix = json.loads(args.matrix.read_text(encoding="utf-8"))
    try:
        if args.what == "chunk":
            outputs = chunk(matrix, args.given)
        else:
            outputs = labels(matrix, args.given)
    except (ValueError, RecursionError) as error:
        # GitHub shows such a line as an annotation of the job.
        print(f"::error::{error}", file=sys.stderr)
        return 2
    for name, value in outputs.items():
        print(f"{name}={json.dumps(value, separators=(',', ':'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
