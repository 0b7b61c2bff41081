"""Checks of a Windows machine: Visual Studio, toolkit, cuDNN, rights, virus scanner, torch.compile."""

import json
import re
from collections.abc import Iterator
from typing import Any

from farm.catalog import number
from farm.machine.detect.machine import NoReadingError
from farm.machine.doctor.findings import Finding, Patient, missing, needs, ok, warning
from farm.platforms.windows.tools import windows_tools

VSWHERE = r"C:\Program Files (x86)\Microsoft Visual Studio\Installer\vswhere.exe"
SETUP = VSWHERE.replace("vswhere.exe", "setup.exe")
SDK = r"C:\Program Files (x86)\Windows Kits\10\Include"
SDK_COMPONENT = "Microsoft.VisualStudio.Component.Windows10SDK.19041"
ENGLISH = "1033"
"""The language id of English (United States): the folder that a compiler's English messages are in."""
ADMINISTRATOR = ("S-1-16-12288", "S-1-16-16384")
"""High and system integrity: the levels of an elevated process (Microsoft, well-known SIDs)."""
MAX_INSTALLATIONS = 32


def visual_studio(patient: Patient) -> Iterator[Finding]:
    """Each installation; the plan's toolset, by the files that build.cmd uses; Windows SDK; English messages."""
    product = patient.plan.windows.visual_studio if patient.plan and patient.plan.windows else "2019"
    wanted = windows_tools().visual_studio[product]
    added = " ".join(f"--add {name}" for name in wanted.components)
    if not patient.site.exists(VSWHERE):
        todo = f"{wanted.url} (sha256 {wanted.sha256}), then vs_BuildTools.exe --passive --wait --norestart {added}"
        yield missing("Visual Studio", "vswhere.exe is not there: none is installed", todo)
        return
    installed = _installations(patient)
    for item in installed:
        yield ok("Visual Studio", f"{item['displayName']} {item['installationVersion']}: {item['installationPath']}")
    paths = [item["installationPath"] for item in installed]
    setup = f'"{SETUP}" modify --passive --norestart --installPath "{paths[-1] if paths else "FOLDER"}"'
    found = [tools for path in paths for tools in _toolsets(patient, path, wanted.toolset)]
    if not found:
        seen = f"no Visual Studio here has the C++ toolset {wanted.toolset} with cl.exe and vcvarsall.bat"
        yield missing("toolset", seen, f"{setup} --add {wanted.component}")
        return
    yield ok("toolset", found[-1])
    if any(patient.site.exists(rf"{SDK}\{name}\um\windows.h") for name in _folders(patient, SDK)):
        yield ok("Windows SDK", SDK)
    else:
        yield missing("Windows SDK", rf"no {SDK}\*\um\windows.h", f"{setup} --add {SDK_COMPONENT}")
    yield _english(patient, found[-1], f"{setup} --addProductLang en-US")


def _toolsets(patient: Patient, path: str, toolset: str) -> list[str]:
    """Folders with cl.exe of a toolset (14.29 of 14.29.30133) in an installation that can set them up."""
    if not patient.site.exists(rf"{path}\VC\Auxiliary\Build\vcvarsall.bat"):
        return []
    named = [name for name in _folders(patient, rf"{path}\VC\Tools\MSVC") if name.startswith(toolset + ".")]
    folders = [rf"{path}\VC\Tools\MSVC\{name}\bin\Hostx64\x64" for name in named]
    return [folder for folder in folders if patient.site.exists(rf"{folder}\cl.exe")]


def _english(patient: Patient, folder: str, todo: str, check: str = "English language pack") -> Finding:
    messages = rf"{folder}\{ENGLISH}\clui.dll"
    if patient.site.exists(messages):
        return ok(check, messages)
    seen = f"{messages} is not there: Ninja and torch.compile read what cl.exe says in English"
    return missing(check, seen, todo)


def _installations(patient: Patient) -> list[dict[str, str]]:
    # UTF-8, else it prints in the code page of the console.
    answer = patient.site.run(VSWHERE, "-utf8", "-nologo", "-products", "*", "-format", "json")
    try:
        listed: Any = json.loads(answer.text)
    except (ValueError, RecursionError):
        raise NoReadingError(f"vswhere ended with {answer.code} and printed no JSON") from None
    keys = ("displayName", "installationPath", "installationVersion")
    rows = listed[:MAX_INSTALLATIONS] if isinstance(listed, list) else []
    return [{key: str(row.get(key, ""))[:300] for key in keys} for row in rows if isinstance(row, dict)]


def _folders(patient: Patient, path: str) -> list[str]:
    try:
        answer = patient.site.run("cmd", "/d", "/c", "dir", "/b", "/ad", path)
    except NoReadingError:
        return []
    return answer.text.split() if answer.code == 0 else []


def toolkit(patient: Patient) -> Iterator[Finding]:
    """The plan's own toolkit, and cuDNN in it; toolkits of the user that get in no one's way."""
    others = patient.site.variable("CUDA_PATH")
    if others:
        yield ok("CUDA_PATH", f"{others}; build.cmd does not look at it")
    if patient.plan is None or patient.plan.toolkit is None:
        return
    home = patient.plan.env["CUDA_HOME"].replace("/", "\\")
    if not patient.site.exists(rf"{home}\bin\nvcc.exe"):
        size = sum(archive.size for archive in patient.plan.toolkit.archives) / 1e9
        how = f"downloads it ({size:.1f} GB)" if size else "installs NVIDIA's wheels there"
        yield warning("toolkit", f"{home} is not there yet", f"nothing: build.cmd {how}")
        return
    yield ok("toolkit", home)
    cudnn = patient.plan.options.get("cudnn")
    if not cudnn:
        return
    dll = rf"{home}\bin\cudnn64_{str(cudnn).split('.')[0]}.dll"
    if patient.site.exists(dll):
        yield ok("cuDNN", dll)
    else:
        yield missing("cuDNN", f"{dll} is not there", f"remove {home} and run build.cmd again")


def rights(patient: Patient) -> Iterator[Finding]:
    """Administrator or not: neither is wrong. Long paths of the system."""
    groups = patient.site.run("whoami", "/groups").text
    if any(sid in groups for sid in ADMINISTRATOR):
        yield ok("rights", "administrator; a build needs no more than a user's rights")
    else:
        yield ok("rights", "user; enough to build. Only installing Visual Studio needs an administrator")
    key = r"HKLM\SYSTEM\CurrentControlSet\Control\FileSystem"
    answer = patient.site.run("reg", "query", key, "/v", "LongPathsEnabled")
    if re.search(r"LongPathsEnabled\s+REG_DWORD\s+0x1\b", answer.text):
        yield ok("long paths", "LongPathsEnabled is 1")
    else:
        todo = f"as administrator: reg add {key} /v LongPathsEnabled /t REG_DWORD /d 1 /f"
        yield warning("long paths", "LongPathsEnabled is not 1", todo)


def scanner(patient: Patient) -> Iterator[Finding]:
    """Are the farm's folders left alone by Microsoft Defender? It tells administrators only."""
    command = "(Get-MpPreference).ExclusionPath"
    answer = patient.site.run("powershell", "-NoProfile", "-NonInteractive", "-Command", command)
    lines = [line.strip().rstrip("\\").lower() for line in answer.text.splitlines() if line.strip()]
    todo = r"as administrator: Add-MpPreference -ExclusionPath C:\farm"
    if answer.code == 0 and any(line in ("c:", "c:\\farm") for line in lines):
        yield ok("antivirus", r"Defender leaves C:\farm alone")
    elif answer.code != 0 or any("administrator" in line for line in lines):
        yield warning("antivirus", "Defender tells its exclusions to administrators only", todo)
    else:
        yield warning(
            "antivirus", r"Defender reads every file of C:\farm: slower, and files are held while it does", todo
        )


def torch_compile(patient: Patient) -> Iterator[Finding]:
    """Needs of torch.compile and notebooks: cl.exe on PATH, a triton-windows that fits the torch here."""
    cl = patient.site.which("cl.exe")
    unset = [name for name in ("INCLUDE", "LIB") if not patient.site.variable(name)]
    prompt = "start Python, or the notebook server, from the x64 Native Tools Command Prompt, which sets all of it"
    if not cl:
        yield warning("torch.compile: cl.exe", "cl.exe is not on PATH", prompt)
    elif unset:
        yield warning("torch.compile: cl.exe", f"{cl}, but {' and '.join(unset)} is not set", prompt)
    else:
        yield ok("torch.compile: cl.exe", cl)
    if cl:
        todo = "add English under Language packs in the Visual Studio Installer"
        yield _english(patient, cl.rpartition("\\")[0], todo, "torch.compile: English")
    torch, triton, wanted = patient.site.package("torch"), patient.site.package("triton-windows"), needs()
    if torch is None:
        yield ok("torch.compile: triton", "no torch beside this Python")
        return
    # triton-windows goes by the minor version of torch.
    release = ".".join(torch.split("+")[0].split(".")[:2])
    below = wanted.triton_below.get(release)
    sms = [int(card.capability.replace(".", "")) for card in patient.readings.gpus if card.capability]
    if sms and max(sms) < wanted.triton_sm_min:
        found = f"Triton starts at sm_{wanted.triton_sm_min}, this machine has sm_{max(sms)}"
        yield warning("torch.compile: triton", found, "use torch.compile on the CPU alone, or do without")
    elif below is None:
        yield warning("torch.compile: triton", f"torch {torch}: no fitting triton-windows is known", "do without")
    elif triton is None:
        yield warning("torch.compile: triton", f"torch {torch} without triton", f'pip install "triton-windows<{below}"')
    elif number(triton.split(".post")[0]) >= number(below):
        found = f"triton-windows {triton} is too new for torch {torch}"
        yield missing("torch.compile: triton", found, f'pip install "triton-windows<{below}"')
    else:
        yield ok("torch.compile: triton", f"triton-windows {triton} fits torch {torch}")


WINDOWS_USE = (("torch.compile", torch_compile),)
WINDOWS_BUILD = (("Visual Studio", visual_studio), ("toolkit", toolkit), ("rights", rights), ("antivirus", scanner))
