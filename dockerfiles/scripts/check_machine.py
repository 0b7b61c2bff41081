"""Looks at a Windows machine before a build downloads anything, and says all that is missing at
once.

Usage: check_machine.py PLAN.json GB, in the environment of vcvarsall.bat; GB: the disk that the
build takes. Exit codes: 0 nothing stops the build, 3 the machine lacks something, 9 an archive
cannot be reached.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import count_jobs
import install_toolkit as toolkit

FARM = Path("C:/farm")
# Who runs this, whether Defender looks at each file that is opened, and what it leaves out; it
# shows administrators alone what that is.
ASK_WINDOWS = """
[Security.Principal.WindowsIdentity]::GetCurrent().User.Value
(Get-MpComputerStatus).RealTimeProtectionEnabled
(Get-MpPreference).ExclusionPath
"""
ASK_S = 60
SERVICES = {
    "S-1-5-18": "SYSTEM",
    "S-1-5-19": "LOCAL SERVICE",
    "S-1-5-20": "NETWORK SERVICE",
}
EXCLUDE = "in PowerShell as administrator: Add-MpPreference -ExclusionPath C:\\farm"
ENGLISH = "1033"
LONG_PATHS = r"SYSTEM\CurrentControlSet\Control\FileSystem"


class Lack(NamedTuple):
    """Something that is missing. `code` 0: it is built all the same."""

    code: int
    text: str
    cure: str


def setup(component: str) -> str:
    """The command line that adds a component of Visual Studio."""
    start = os.environ.get("FARM_SETUP", "setup.exe modify")
    return f'{start} --installPath "{os.environ.get("FARM_VS", "")}" {component}'


def windows_says() -> list[str]:
    """Return the lines of Windows' answer to ASK_WINDOWS; none where there is no PowerShell."""
    command = ["powershell", "-NoProfile", "-NonInteractive", "-Command", ASK_WINDOWS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def account(answer: list[str]) -> Iterator[Lack]:
    """An account of a service: it has no profile, no Python of its own and no proxy settings."""
    name = SERVICES.get(answer[0]) if answer else None
    if name:
        text = (
            f"this runs as {name}: settings of pip, git and a proxy, and a Python, of yours "
            "are not its"
        )
        cure = (
            "give the service an account of its own: services.msc, Log On; then run all as "
            "that account"
        )
        yield Lack(0, text, cure)


def defender(answer: list[str]) -> Iterator[Lack]:
    """Defender, which opens each object file after the compiler: slow, and a locked file now and
    then.
    """
    if "True" not in answer[1:2]:
        return
    excluded = {path.lower().rstrip("\\") for path in answer[2:]}
    if not excluded & {"c:", "c:\\farm"}:
        text = (
            "Defender reads each file of the build: it takes longer, and may stop at a file in use"
        )
        yield Lack(0, text, EXCLUDE)


def compiler() -> Iterator[Lack]:
    """The components of Visual Studio that a build uses, and English messages of cl.exe."""
    sdk = os.environ.get("FARM_SDK", "Microsoft.VisualStudio.Component.Windows10SDK.19041")
    include = [Path(each) for each in os.environ.get("INCLUDE", "").split(os.pathsep) if each]
    library = [Path(each) for each in os.environ.get("LIB", "").split(os.pathsep) if each]
    if not any((each / "windows.h").is_file() for each in include):
        text = "no Windows SDK: vcvarsall.bat put no folder with windows.h into INCLUDE"
        yield Lack(3, text, setup(f"--add {sdk}"))
    elif library and not any((each / "kernel32.lib").is_file() for each in library):
        text = "the Windows SDK is not whole: no folder of LIB has kernel32.lib"
        yield Lack(3, text, setup(f"--add {sdk}"))
    for name, component in (
        ("rc.exe", sdk),
        ("mt.exe", sdk),
        ("link.exe", os.environ.get("FARM_TOOLSET", "")),
    ):
        if component and shutil.which("cl.exe") and not shutil.which(name):
            yield Lack(3, f"vcvarsall.bat put no {name} on PATH", setup(f"--add {component}"))
    cl = shutil.which("cl.exe")
    if cl and not (Path(cl).parent / ENGLISH / "clui.dll").is_file():
        text = (
            "cl.exe has no English messages: Ninja and sccache may not understand which files "
            "it includes"
        )
        yield Lack(0, text, setup("--addProductLang en-US"))


def room(plan: dict[str, Any], disk_gb: float) -> Iterator[Lack]:
    """Disk, memory of one compiler, long paths."""
    wanted = (
        disk_gb + 4 * sum(size for _, _, size in downloads(plan)) / 1e9
    )  # packed, and about three times that unpacked
    free = shutil.disk_usage(FARM).free / 1e9
    if free < wanted and not (FARM / "src/build").exists():
        text = (
            f"{free:.0f} GB are free on the disk of C:\\farm, the build takes about "
            f"{wanted:.0f} GB (estimated)"
        )
        yield Lack(
            3,
            text,
            "make room, or move C:\\farm to another drive and: cmd /c mklink /J C:\\farm D:\\farm",
        )
    memory = count_jobs.memory() / 1e9
    if memory < plan["memory_per_job_gb"]:
        text = f"{memory:.1f} GB of memory, one compiler takes up to {plan['memory_per_job_gb']} GB"
        yield Lack(
            0,
            text,
            "enlarge the page file: SystemPropertiesPerformance.exe, Advanced, Virtual memory",
        )
    if not long_paths():
        cure = (
            f"as administrator: reg add HKLM\\{LONG_PATHS} /v LongPathsEnabled /t REG_DWORD /d 1 /f"
        )
        yield Lack(
            0, "LongPathsEnabled is not 1: paths of more than 259 characters cannot be opened", cure
        )


def long_paths() -> bool:
    """Whether programs may open long paths."""
    if sys.platform != "win32":
        return True
    import winreg  # noqa: PLC0415 - Windows alone has it

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, LONG_PATHS) as key:
            return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0] == 1)
    except OSError:
        return False


def downloads(plan: dict[str, Any]) -> Iterator[tuple[list[str], str, int]]:
    """Addresses, sha256 and bytes of each file that is not there yet; of small tools the bytes do
    not count.
    """
    for tool in plan["windows"]["tools"]:
        receipt = FARM / f"tools/{tool['name']}.ok"
        if not (receipt.is_file() and receipt.read_text() == tool["sha256"]):
            yield [tool["url"], *tool.get("mirrors", [])], tool["sha256"], 0
    found = plan["toolkit"]
    if found and not (Path(plan["env"]["CUDA_HOME"]) / ".redist.json").is_file():
        for archive in found["archives"]:
            if not list((FARM / "downloads").glob(f"{archive['sha256']}.*")):
                yield [archive["url"]], archive["sha256"], archive["size"]


def unreachable(urls: list[str], sha256: str) -> Lack | None:
    """What to do where neither FARM_ARCHIVES nor one of its servers has a file."""
    name = urls[0].rpartition("/")[2]
    own = os.environ.get("FARM_ARCHIVES", "").rstrip("/")
    if own and not own.lower().startswith(("http://", "https://")) and Path(own, name).is_file():
        return None
    if own.lower().startswith(("http://", "https://")):
        mirrors = [f"{own}/{name}"]
    else:
        mirrors = []
    reason = ""
    for place in (*mirrors, *urls):
        if not (reason := toolkit.reach(place)):
            return None
    text = f"{toolkit.public_url(urls[0])} cannot be reached: {reason}"
    return Lack(
        9, text, f"put {name} (sha256 {sha256}) into a folder, and: set FARM_ARCHIVES=FOLDER"
    )


def archives(plan: dict[str, Any]) -> Iterator[Lack]:
    """The files that cannot be downloaded."""
    with ThreadPoolExecutor(8) as pool:
        yield from filter(
            None, pool.map(lambda each: unreachable(*each[:2]), list(downloads(plan)))
        )


def main(argv: list[str]) -> int:
    plan = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    answer = windows_says()
    lacks = [
        *compiler(),
        *room(plan, float(argv[1])),
        *account(answer),
        *defender(answer),
        *archives(plan),
    ]
    for lack in lacks:
        print(f"{'missing' if lack.code else 'warning'}: {lack.text}\n  {lack.cure}", flush=True)
    return max((lack.code for lack in lacks), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
