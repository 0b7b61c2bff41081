"""Which Pythons a wheel's tags are for."""

from pathlib import Path

import pytest
import yaml

from farm.base.requirement import python_of, serves
from farm.plan.variant import PYTHONS

CASES = yaml.safe_load(Path(__file__).with_name("tags.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("python", PYTHONS)
def test_the_python_of_a_wheels_tags(python):
    """Tags as PEP 425 and PEP 703 write them: the interpreter, and an ABI that ends with `t` where
    there is no GIL.
    """
    interpreter = f"cp{python[2:].rstrip('t')}"
    assert python_of(interpreter, interpreter + ("t" if python.endswith("t") else "")) == python
    assert python_of(interpreter, "abi3") == python.rstrip("t")
    assert python_of(interpreter, "none") == python.rstrip("t")


@pytest.mark.parametrize(("interpreter", "abi", "pythons"), CASES["which_pythons_install_a_wheel"])
def test_which_pythons_install_a_wheel(interpreter, abi, pythons):
    """As pip decides (PEP 425, PEP 384, PEP 703)."""
    known = ["py39", "py310", "py311", "py312", "py313", "py313t", "py314", "py314t"]
    assert [python for python in known if serves(interpreter, abi, python)] == pythons.split()
