"""Coverage-guided fuzzing of every parser, from the seeds in `fuzz_corpus`, with a fixed budget each.

The same inputs in the same order wherever addresses need not be random: a slower machine only gets less far, and what
fails once fails again. New inputs, by hand: `python fuzz_target.py PARSER -seed=N -max_total_time=600 NEW_FOLDER
fuzz_corpus/PARSER`.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SEEDS = HERE / "fuzz_corpus"
PARSERS = sorted(folder.name for folder in SEEDS.iterdir())
SECONDS = 8
HANG_S = 5
BASE_MB = 128  # the fuzzer, the interpreter and what is imported, with room to spare: 60 to 110 MB were seen
MEMORY_MB = 256


def need_atheris() -> None:
    if importlib.util.find_spec("atheris") is None:
        message = "atheris is missing: pip install atheris"
        if os.environ.get("FARM_REQUIRE") == "all":
            pytest.fail(message)
        pytest.skip(message)


def fuzz(parser: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    found, crashes = tmp_path / "found", tmp_path / "crashes"
    found.mkdir()
    crashes.mkdir()
    command = [sys.executable, str(HERE / "fuzz_target.py"), parser, f"-timeout={HANG_S}", "-seed=1", "-reload=0",
               f"-rss_limit_mb={BASE_MB + MEMORY_MB}", f"-malloc_limit_mb={MEMORY_MB}", "-max_len=20000",
               f"-artifact_prefix={crashes}/", *options, str(found), str(SEEDS / parser)]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "TMPDIR": str(tmp_path), "PYTHONHASHSEED": "0"}
    fixed = ["setarch", "--addr-no-randomize"]  # containers may forbid it
    if subprocess.run([*fixed, "true"], check=False, capture_output=True).returncode == 0:
        command = [*fixed, *command]
    # libFuzzer reads ru_maxrss, which a process keeps through exec: a fork of a shell, not of this large process.
    command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20 * SECONDS, check=False)


@pytest.mark.parametrize("parser", PARSERS)
def test_nothing_but_clear_errors(parser: str, tmp_path: Path) -> None:
    need_atheris()
    result = fuzz(parser, tmp_path, f"-max_total_time={SECONDS}")
    crashes = [path.name for path in (tmp_path / "crashes").iterdir()]
    assert (result.returncode, crashes) == (0, []), result.stdout[-2000:] + result.stderr[-2000:]
    runs = int(result.stderr.rsplit("Done ", 1)[1].split()[0])
    assert runs > 100, result.stderr[-1000:]


def test_a_crash_would_be_seen(tmp_path: Path) -> None:
    """The seeds alone, with a target whose parser is broken on purpose."""
    need_atheris()
    code = (
        "import sys, runpy, farm.wheel.fatbin as f; sys.argv = sys.argv[1:];"
        "f.read_fatbins = lambda *a: 1 // 0; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(HERE / "fuzz_target.py"), "fatbin", "-runs=1",
               f"-artifact_prefix={tmp_path}/", str(SEEDS / "fatbin")]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "TMPDIR": str(tmp_path)}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0
    assert "ZeroDivisionError" in result.stdout + result.stderr
    assert list(tmp_path.glob("crash-*"))
