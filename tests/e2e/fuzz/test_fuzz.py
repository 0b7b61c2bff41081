"""Coverage-guided fuzzing of every parser: the recorded inputs of `corpus`; new ones if
FARM_FUZZ_RUNS asks for some.

No new input decides over a landing: CI runs the recorded ones, `make fuzz` draws new ones
(FARM_FUZZ_SEED: others). An input that fails is printed and kept in `artifacts/fuzz/PARSER`; once
the parser is mended it belongs into `corpus/PARSER`, where every run tries it. What libFuzzer calls
a slow unit is kept too, and is no failure: on a busy machine, under instrumentation, anything may
be slow. `python tests/e2e/fuzz/target.py PARSER FILE` runs it alone.
"""

import base64
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CORPUS = HERE / "corpus"
KEPT = ROOT / "artifacts" / "fuzz"
PARSERS = sorted(folder.name for folder in CORPUS.iterdir())
RUNS = int(os.environ.get("FARM_FUZZ_RUNS", "0"))
SEED = int(os.environ.get("FARM_FUZZ_SEED", "1"))
# for one input, on a machine that others use too; the slowest recorded one needs a hundredth
HANG_S = 60
# the fuzzer, the interpreter and what is imported, with room to spare: 60 to 110 MB were seen
BASE_MB = 128
MEMORY_MB = 256
SLOW = "slow-unit-"


def need_atheris() -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("atheris has no wheels for Python 3.14 and newer")
    if importlib.util.find_spec("atheris") is None:
        message = "atheris is missing: pip install atheris"
        if os.environ.get("FARM_REQUIRE") == "all":
            pytest.fail(message)
        pytest.skip(message)


def fuzz(
    parser: str, tmp_path: Path, runs: int, *, prelude: str = "pass"
) -> subprocess.CompletedProcess[str]:
    """The fuzzer on the corpus of a parser and on new inputs, up to `runs`; `prelude` is code that
    runs before it.
    """
    found, crashes = tmp_path / "found", tmp_path / "crashes"
    found.mkdir()
    crashes.mkdir()
    run = (
        f"import sys, runpy; sys.argv = sys.argv[1:]; {prelude}; runpy.run_path(sys.argv[0], "
        "run_name='__main__')"
    )
    command = [sys.executable, "-c", run, str(HERE / "target.py"), parser, f"-runs={runs}", f"-seed={SEED}",
               f"-timeout={HANG_S}", "-reload=0", f"-rss_limit_mb={BASE_MB + MEMORY_MB}",
               f"-malloc_limit_mb={MEMORY_MB}", "-max_len=20000", f"-artifact_prefix={crashes}/",
               str(found), str(CORPUS / parser)]  # fmt: skip
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
        "PYTHONHASHSEED": "0",
    }
    fixed = ["setarch", "--addr-no-randomize"]  # containers may forbid it
    if subprocess.run([*fixed, "true"], check=False, capture_output=True).returncode == 0:
        command = [*fixed, *command]
    # libFuzzer reads ru_maxrss, which a process keeps through exec: a fork of a shell, not of this
    # large process.
    command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=1800, check=False
    )


def keep(parser: str, tmp_path: Path) -> str:
    """Saves what libFuzzer left out of the temporary folder; names the inputs that failed, with
    their content.
    """
    text = ""
    for path in sorted((tmp_path / "crashes").iterdir()):
        folder = KEPT / parser
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.name)
        if not path.name.startswith(SLOW):
            text += f"{folder / path.name}: base64 {base64.b64encode(path.read_bytes()).decode()}\n"
    return text


@pytest.mark.parametrize("parser", PARSERS)
def test_nothing_but_clear_errors(parser: str, tmp_path: Path) -> None:
    need_atheris()
    recorded = len(list((CORPUS / parser).iterdir()))
    result = fuzz(parser, tmp_path, recorded + RUNS)
    crashes = keep(parser, tmp_path)
    assert (result.returncode, crashes) == (0, ""), result.stdout[-2000:] + result.stderr[-2000:]
    done = int(result.stderr.rsplit("Done ", 1)[1].split()[0])
    assert done >= recorded + RUNS, result.stderr[-1000:]


def test_a_slow_input_is_kept_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "KEPT", tmp_path / "kept")
    (tmp_path / "crashes").mkdir()
    for name in (f"{SLOW}1", "timeout-2"):
        (tmp_path / "crashes" / name).write_bytes(b"input")
    assert "timeout-2" in (message := keep("elf", tmp_path))
    assert SLOW not in message
    assert {path.name for path in (tmp_path / "kept" / "elf").iterdir()} == {
        f"{SLOW}1",
        "timeout-2",
    }


def test_a_crash_is_found_printed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded inputs alone, with a target whose parser is broken on purpose."""
    need_atheris()
    monkeypatch.setattr(sys.modules[__name__], "KEPT", tmp_path / "kept")
    result = fuzz(
        "fatbin",
        tmp_path,
        1,
        prelude="import farm.wheel.fatbin as f; f.read_fatbins = lambda *a: 1 // 0",
    )
    assert result.returncode != 0
    assert "ZeroDivisionError" in result.stdout + result.stderr
    [kept] = (tmp_path / "kept" / "fatbin").glob("crash-*") if keep("fatbin", tmp_path) else []
    assert base64.b64encode(kept.read_bytes()).decode() in keep("fatbin", tmp_path)
