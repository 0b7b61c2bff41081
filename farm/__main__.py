"""`python -m farm`: the command, or one line for a Python that is too old for it."""

import sys

# Before anything is imported that an older Python cannot compile.
if sys.version_info < (3, 11):  # noqa: UP036 that is what it is for
    sys.stderr.write(
        "farm: needs Python 3.11 or newer, and {} is Python {}.{}\nnext: python3.11 -m farm, or "
        "`uv tool install --python 3.11 torch-farm`, which brings one\n".format(
            sys.executable, *sys.version_info[:2]
        )
    )
    sys.exit(2)

from farm.cli.main import main

sys.exit(main())
