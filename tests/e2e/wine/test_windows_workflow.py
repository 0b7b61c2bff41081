"""The scripts of windows.yml by bash, as on the hosted runner: its cmd is Wine's, and compilers are
the stand-ins.
"""

import os
import subprocess
import sys
import zipfile

import pytest
import yaml

from tests.e2e.wine.test_windows_build import ROOT, TIMEOUT_S, machine, plan, tools  # noqa: F401 fixtures
from tests.e2e.wine.windows_python import windows_path

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "windows.yml").read_text())
CMD = '#!/bin/sh\n[ "$1 $2" = "//d //c" ] || exit 99\nshift 2\nexec wine cmd /d /c "$@"\n'
# The kit, whose real Python finds neither Windows' SDK nor NVIDIA's server here.
FARM = r"""#!/bin/sh
{python} -m farm.cli.main "$@" || exit $?
[ "$1" = render ] || exit 0
sed -i 's/"%FARM_PYTHON%" check_machine.py/C:\\tools\\pythonhome\\python.exe check_machine.py/' kit/job/build.cmd
sed -i 's/%FARM_PYTHON%/C:\\tools\\pythonhome\\python.exe/g' kit/job/prepare.cmd
"""


def script(job, name):
    return next(step["run"] for step in WORKFLOW["jobs"][job]["steps"] if step.get("name") == name)


@pytest.mark.parametrize("fails", [False, True])
def test_the_configure_job_leaves_a_report_that_can_be_read(
    machine,  # noqa: F811
    windows_python,
    tmp_path,
    fails,
):
    (windows_python.folder / "Lib/ensurepip").mkdir(
        exist_ok=True
    )  # the environments are made by the stand-in
    ninja = r"write=C:\farm\src\build\build.ninja"
    machine.rules.append(
        ("python.exe", "--cmake-only", ninja, "print=CMake Error: x", f"exit={int(fails)}")
    )
    machine.rules_file.write_text("".join("\t".join(rule) + "\n" for rule in machine.rules))
    programs, work = tmp_path / "bin", machine.c / "tools/work"
    for folder in (programs, work):
        folder.mkdir()
    for name, text in (("cmd", CMD), ("farm", FARM.format(python=sys.executable))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = machine.environment | WORKFLOW["env"] | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "FARM_PYTHON": windows_path(windows_python.exe),
        "FARM_CONFIGURE": "1",
        "CHANNEL": "kepler-2.0.1",
    }  # fmt: skip

    def ran(name):
        line = ["bash", "-e", "-o", "pipefail", "-c", script("configure", name)]
        return subprocess.run(
            line,
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    done = ran("Configure, up to build.ninja")
    assert done.returncode == 5 * fails, done.stdout + done.stderr
    assert ("configured, and not built (FARM_CONFIGURE)" in done.stdout) == (not fails)
    assert done.stdout.startswith("::stop-commands::")
    with zipfile.ZipFile(work / "kit/job/farm-report.zip") as archive:
        assert {"farm-report.txt", "build.log", "plan.json"} <= set(archive.namelist())
    read = ran("What CMake found beside what the plan says")
    assert read.returncode == 0, read.stderr
    assert ("step build FAILED" in read.stdout) == fails, read.stdout
