"""Counts what the compiler cache did for one build, by language and by axis: what `farm cache report` adds up.

Usage: cache_counts.py STATS_LOG TREE DEST. STATS_LOG is ccache's (stats_log: `# <source file>` and, a line each, the
counters of one compile); TREE holds the build's compile_commands.json (CMake) or build.ninja (torch's extensions).
Writes DEST/cache.json.

The axis is what an object depends on, as its command says: `gpu` with an architecture of device code, `python` with
Python's headers, else `cpu`. `configure`: a compile that is none of the build's, such as CMake's trials.
"""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DEVICE = re.compile(r"(^| )(-gencode|--generate-code|-arch)[ =]")
BINDING = re.compile(r"/include/python3")
LANGUAGES = {".cu": "CUDA", ".c": "C"}
NO_COMPILE = ("called_for_link", "called_for_preprocessing", "no_input_file")  # the last: `g++ -v`
RESULTS = {"direct_cache_hit": "direct", "preprocessed_cache_hit": "preprocessed", "cache_miss": "miss"}


def blocks(text: str) -> "list[tuple[str, list[str]]]":
    """(source file, counters) of each compile."""
    found: list = []
    for line in text.splitlines():
        if line.startswith("# "):
            found.append((line[2:], []))
        elif found and line:
            found[-1][1].append(line)
    return found


def axes(tree: Path) -> "dict[str, str]":
    """Source file -> axis; of a file that is compiled more than once the first command counts."""
    found: dict = {}
    for entry in commands(tree):
        command = entry["command"]
        axis = "gpu" if DEVICE.search(command) else "python" if BINDING.search(command) else "cpu"
        found.setdefault(str(Path(entry["directory"], entry["file"])), axis)
    return found


def commands(tree: Path) -> "Iterator[dict[str, str]]":
    """The compile commands of the tree, as CMake and Ninja write them: directory, command, file."""
    for path in sorted(tree.rglob("compile_commands.json")):
        yield from json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(tree.rglob("build.ninja")):
        if not (path.parent / "compile_commands.json").exists() and shutil.which("ninja"):
            asked = subprocess.run(["ninja", "-t", "compdb"], cwd=path.parent, stdout=subprocess.PIPE, check=False)
            yield from json.loads(asked.stdout) if asked.returncode == 0 else []


def count(text: str, known: "dict[str, str]") -> "list[dict[str, object]]":
    """One row for each language, axis and result; `other`: ccache passed the compile on without looking."""
    counted: Counter = Counter()
    for file, counters in blocks(text):
        result = next((RESULTS[name] for name in counters if name in RESULTS), None)
        if result is None and any(name in NO_COMPILE for name in counters):
            continue
        language = LANGUAGES.get(Path(file).suffix, "C++")
        counted[language, known.get(file, "configure"), result or "other"] += 1
    names = ("language", "axis", "result")
    return [{**dict(zip(names, key)), "count": number} for key, number in sorted(counted.items())]  # noqa: B905 Python 3.9


def main() -> int:
    log, tree, dest = map(Path, sys.argv[1:])
    rows = count(log.read_text(encoding="utf-8", errors="replace"), axes(tree))
    (dest / "cache.json").write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    hits = sum(int(str(row["count"])) for row in rows if row["result"] in ("direct", "preprocessed"))
    print(f"compiler cache: {hits} of {sum(int(str(row['count'])) for row in rows)} compiles were hits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
