"""A package whose build does not end by itself: for tests that cancel builds."""

from pathlib import Path

import yaml

from tests.companion import RECIPE

ENDLESS = "endless"
SETUP = """\
import time
print("farm: step that waits for the test", flush=True)
time.sleep(3600)
"""


def add_endless(project: Path) -> None:
    """Add the recipe `endless` to a project, and a channel that builds it."""
    folder = project / "recipes" / ENDLESS
    (folder / "src").mkdir(parents=True)
    recipe = RECIPE | {
        "package": ENDLESS,
        "summary": "a build that waits until it is cancelled",
        "version": "1.0.0",
        "vendor_into": f"{ENDLESS}.libs",
        "smoke": {"imports": [ENDLESS]},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "src/setup.py").write_text(SETUP)
    matrix = project / "ci/matrix.yaml"
    data = yaml.safe_load(matrix.read_text())
    data["channels"][ENDLESS] = {
        "summary": "builds that wait until they are cancelled",
        "platforms": ["linux"],
        "packages": [ENDLESS],
        "base": "debian-bookworm",
        "toolkit": "debian",
        "cuda": "11.8",
        "torch": "2.6.0",
        "blas": "openblas",
        "gpus": ["cpu"],
        "cpus": ["sse41", "avx", "avx2"],
        "pythons": ["py311"],
    }
    matrix.write_text(yaml.safe_dump(data, sort_keys=False))
