"""Which Python tags keep the promise of a variant's Python."""

import pytest

from farm.wheel.metadata import parse_wheel_name
from farm.wheel.verify import _check_python


@pytest.mark.parametrize(
    ("tags", "python"),
    [
        ("cp311-cp311", "cp311"),
        ("cp311-abi3", "cp311"),
        ("cp37-abi3", "cp311"),  # PEP 384: the stable ABI of 3.7 is that of every later 3.x
        ("cp39-abi3", "cp310"),  # 39 is below 310 as text only
        ("cp37.cp311-abi3", "cp311"),
        ("py3-none", "cp311"),  # libraries that are no modules, which ctypes loads
        ("py38-none", "cp313t"),
        ("py2.py3-none", "cp311"),
        ("cp311-none", "cp311"),
    ],
)
def test_a_tag_that_serves(tags, python):
    assert _check_python(parse_wheel_name(f"canary-1.0-{tags}-linux_x86_64.whl"), python, for_some=False) == []


@pytest.mark.parametrize(
    ("tags", "python", "wrong"),
    [
        ("cp312-abi3", "cp311", "cp312-abi3"),  # newer than promised
        ("cp310-abi3", "cp39", "cp310-abi3"),
        ("cp37-cp37m", "cp311", "cp37-cp37m"),
        ("cp310-cp310", "cp311", "cp310-cp310"),
        ("py3-abi3", "cp311", "py3-abi3"),
        ("cp3-abi3", "cp311", "cp3-abi3"),  # pip begins at cp32
        ("py312-none", "cp311", "py312-none"),
        ("py2-none", "cp311", "py2-none"),
        ("cp38-abi3", "cp313t", "cp38-abi3"),  # PEP 803: it has none
        ("cp27-abi3", "cp311", "cp27-abi3"),
    ],
)
def test_a_tag_that_does_not(tags, python, wrong):
    found = _check_python(parse_wheel_name(f"canary-1.0-{tags}-linux_x86_64.whl"), python, for_some=False)
    assert found == [f"it is for {wrong}; promised is {python}"]
