"""The table in the job page of a build-wheels run: what became of each build, and how pip gets at
it.

    python3 tools/workflow_summary.py --matrix matrix.json --jobs jobs.jsonl --published FOLDER

Standard library only: it runs on a hosted machine without the farm. Names and pip lines are
untrusted.
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path

STAGES = ("build", "verify", "publish", "smoke")
MARKS = {
    "success": "✅",
    "failure": "❌",
    "cancelled": "🚫",
    "skipped": "not run",
    "timed_out": "⏱",
    None: "…",
}
MAX_CELL = 400
MAX_FILE = 1 << 16


def table(names: Iterable[str], jobs: dict[str, str | None], pip: dict[str, str]) -> str:
    """Markdown: a row for each build of the matrix, a column for each stage; then the pip lines."""
    lines = ["| build | " + " | ".join(STAGES) + " | pip |", "|---" * (len(STAGES) + 2) + "|"]
    counts = dict.fromkeys(STAGES, 0)
    for name in names:
        marks = []
        for stage in STAGES:
            key = f"{stage} {name}"
            # A job that never started is not on the list.
            done = jobs.get(key, "skipped")
            counts[stage] += done == "success"
            marks.append(MARKS.get(done, "?"))
        # A file of that name may come from any job of the run: it counts where this run's own
        # publishing says that it succeeded.
        published = name in pip and jobs.get(f"publish {name}") == "success"
        line = f"`{cell(pip[name])}`" if published else ""
        lines.append(f"| {cell(name)} | {' | '.join(marks)} | {line} |")
    total = len(lines) - 2
    summary = ", ".join(f"{stage} {counts[stage]} of {total}" for stage in STAGES)
    return f"### {summary}\n\n" + "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """One cell: nothing in it ends the cell, the code span or the line, or is taken for HTML."""
    return re.sub(r"[^ !-~]|[|`<>&\\]", "?", text)[:MAX_CELL]


def pip_line(file: Path) -> str | None:
    """The pip line of a `published.json`; None: it is none."""
    if not file.is_file() or file.stat().st_size > MAX_FILE:
        return None
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("pip"), str):
        return None
    return str(document["pip"])


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--published", type=Path, required=True)
    args = parser.parse_args()
    names = [
        entry["name"] for entry in json.loads(args.matrix.read_text(encoding="utf-8"))["include"]
    ]
    rows = [json.loads(line) for line in args.jobs.read_text(encoding="utf-8").splitlines() if line]
    pip = {}
    for file in args.published.glob("published */published.json"):
        line = pip_line(file)
        if line is not None:
            pip[file.parent.name.removeprefix("published ")] = line
    print(table(names, {row["name"]: row["conclusion"] for row in rows}, pip), end="")


if __name__ == "__main__":
    main()
