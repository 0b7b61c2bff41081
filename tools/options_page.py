"""Writes the table of docs/reference/options.md from the farm's own table of options.

    python -m tools.options_page [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

from pathlib import Path

from farm.plan.options import OPTIONS, Option
from tools.generated import write

OUT = Path(__file__).parent.parent / "docs" / "reference" / "options.md"

PAGE = """\
# Options of a build

What a channel of `ci/matrix.yaml` pins can be overridden for one build. The nearest place wins: the
command line, then the variable, `options:` in `ci/farm.yaml`, the channel, the option's default.
`farm plan --all` prints each value with its origin.

{table}
This table is written by `make generate` from `farm/plan/options.py`.
"""


def value_column(option: Option) -> str:
    """What an option takes, as the table shows it."""
    if option.kind is bool:
        return f"`{option.off_flag}` for false"
    if option.kind is int:
        return f"0 to {option.maximum}"
    words = option.choices or (option.metavar,)
    return " or ".join(f"`{word}`" for word in words)


def markdown() -> str:
    """The table of docs/reference/options.md."""
    rows = ["| option | value | variable | key of a channel | what |", "|---|---|---|---|---|"]
    for option in OPTIONS.values():
        value = value_column(option)
        key = f"`{option.name}`" if option.pinned or option.name == "cuda" else ""
        rows.append(f"| `{option.flag}` | {value} | `{option.variable}` | {key} | {option.help} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    write(__doc__, OUT, PAGE.format(table=markdown()))


if __name__ == "__main__":
    main()
