"""Checks of a Windows machine: Visual Studio, toolkit, cuDNN, rights, virus scanner, torch.compile."""

import json
import re
from collections.abc import Iterator
from typing import Any

from farm.machine.detect.machine import NoReadingError
from farm.machine.doctor.findings import Finding, Patient, missing, needs, ok, warning
from farm.plan.compat.stack import number
from farm.platforms.windows.tools import windows_tools

VSWHERE = r"C:\Program Files (x86)\Microsoft Visual Studio\Installer\vswhere.exe"
CPP = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
ENGLISH = "1033"
"""The language id of English (United States): the folder that a compiler's English messages are in."""
ADMINISTRATOR = ("S-1-16-12288", "S-1-16-16384")
"""High and system integrity: the levels of an elevated process (Microsoft, well-known SIDs)."""
MAX_INSTALLATIONS = 32


def visual_studio(patient: Patient) -> Iterator[Finding]:
    """Each installation with its C++ tools; the pinned toolset; English messages; vcvarsall.bat."""
    toolset = patient.plan.windows.toolset if patient.plan and patient.plan.windows else "14.29"
    product = patient.plan.windows.visual_studio if patient.plan and patient.plan.windows else "2019"
    todo = (
        f"install Visual Studio {product} Build Tools: {', '.join(windows_tools().visual_studio[product].components)}"
    )
    if not patient.site.exists(VSWHERE):
        yield missing("Visual Studio", "vswhere.exe is not there: none is installed", todo)
        return
    all_of_them = _installations(patient)
    # Asked a second time: vswhere does not say which components an installation has.
    with_cpp = {item["installationPath"] for item in _installations(patient, "-requires", CPP)}
    if not all_of_them:
        yield missing("Visual Studio", "vswhere names none", todo)
        return
    found = None
    for item in all_of_them:
        path = item["installationPath"]
        if path not in with_cpp:
            yield warning("Visual Studio", f"{item['displayName']}: no C++ tools", f"add the component {CPP}")
            continue
        yield ok("Visual Studio", f"{item['displayName']} {item['installationVersion']}: {path}")
        for name in _folders(patient, rf"{path}\VC\Tools\MSVC"):
            # The folder is called 14.29.30133; two numbers are what is pinned.
            if name.startswith(toolset + "."):
                found = (path, name)
    if found is None:
        yield missing(
            "toolset", f"no Visual Studio here has the C++ toolset {toolset}", f"add it in the installer, or {todo}"
        )
        return
    path, name = found
    yield ok("toolset", rf"{path}\VC\Tools\MSVC\{name}")
    script = rf"{path}\VC\Auxiliary\Build\vcvarsall.bat"
    if patient.site.exists(script):
        yield ok("vcvars", script)
    else:
        yield missing("vcvars", f"{script} is not there", "repair the installation in the Visual Studio Installer")
    messages = rf"{path}\VC\Tools\MSVC\{name}\bin\Hostx64\x64\{ENGLISH}\clui.dll"
    if patient.site.exists(messages):
        yield ok("English language pack", messages)
    else:
        todo = (
            "add English under Language packs in the installer: other messages break ninja's and torch's reading of cl"
        )
        yield missing("English language pack", f"{messages} is not there", todo)


def _installations(patient: Patient, *more: str) -> list[dict[str, str]]:
    # UTF-8, else it prints in the code page of the console.
    answer = patient.site.run(VSWHERE, "-utf8", "-nologo", "-products", "*", *more, "-format", "json")
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
    if cl:
        yield ok("torch.compile: cl.exe", cl)
    else:
        todo = (
            "start Python, or the notebook server, from the x64 Native Tools Command Prompt: "
            "cl.exe is found by programs that were started there alone"
        )
        yield warning("torch.compile: cl.exe", "cl.exe is not on PATH", todo)
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
