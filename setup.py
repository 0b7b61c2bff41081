"""What pyproject.toml cannot say: a wheel carries ci/ and dockerfiles/, as a checkout has them."""

import shutil
import sys
from pathlib import Path

# Before anything is downloaded or compiled for a Python that cannot run it.
if sys.version_info < (3, 11):  # noqa: UP036 that is what it is for
    sys.exit(
        "farm: needs Python 3.11 or newer, and {} is Python {}.{}".format(
            sys.executable, *sys.version_info[:2]
        )
    )

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SHIPPED = ("ci", "dockerfiles")


class BuildPy(build_py):
    """Copies the folders into the package, where `farm.base.resources` finds them; not for an
    editable install.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "farm", "_shipped")
        shutil.rmtree(target, ignore_errors=True)  # a build folder that was used before
        for name in SHIPPED:
            shutil.copytree(
                ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__")
            )


setup(cmdclass={"build_py": BuildPy})
