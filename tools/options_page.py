"""Writes the table of docs/options.md from the farm's own table of options.

    python -m tools.options_page [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

from pathlib import Path

from farm.plan.options import markdown
from tools.generated import write

OUT = Path(__file__).parent.parent / "docs" / "options.md"

PAGE = """\
# Options of a build

What a channel of `ci/matrix.yaml` pins can be overridden for one build. The nearest place wins: the command line, then
the variable, then `options:` in `ci/farm.yaml`, then the channel, then the option's default. `farm plan` prints each
value with its origin.

{table}
This table is written by `make generate` from `farm/plan/options.py`.
"""


def main() -> None:
    write(__doc__, OUT, PAGE.format(table=markdown()))


if __name__ == "__main__":
    main()
