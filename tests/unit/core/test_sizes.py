"""What CONTRIBUTING.md says of sizes: a function fits on a screen; a module is as long as its subject."""

from farm.base.zipapps import ROOT
from tools.sizes import functions

SCREEN = 80
"""Lines of a screen, a function's docstring included."""


def test_a_function_fits_on_a_screen():
    found = list(functions(ROOT / "farm"))
    assert "verify" in {name for _, name, _ in found}
    assert [f"{path}: {name}" for path, name, lines in found if lines > SCREEN] == []
