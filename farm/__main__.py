"""`python -m farm`: the command, where its script is not on the PATH or of several Pythons one is meant."""

import sys

from farm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
