"""A compiler for Windows that runs under Wine, in the places where Visual Studio and NVIDIA's
toolkit would be.

Real: clang 20, lld-link and llvm-lib for Windows (the Python package ziglang), NVIDIA's ptxas.exe
11.8 and fatbinary.exe, its cudart64_110.dll and headers, CMake, Ninja and pip for Windows. Not
real: MSVC. `cl.exe` launches clang, which takes cl's options and makes code for MinGW's C and C++
libraries (Debian's); CMake is told that it is the plan's MSVC. `link.exe` is lld-link, `lib.exe`
llvm-lib, `nvcc.exe` of CUDA 11 nvcc.py (that of 13 is NVIDIA's own). `rc.exe`, `mt.exe`,
vswhere.exe, vcvarsall.bat and sccache.exe do the least that is needed. The toolkit of CUDA 11 calls
itself the plan's, and is of 11.8. pyconfig.h and python3.lib are ours.
"""

import json
import shutil
import subprocess
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pefile

from farm.plan.compat.compilers import msc_ver
from farm.plan.file import Plan
from farm.plan.render import render
from tests.e2e.wine.windows_python import GCC, TIMEOUT_S, WindowsPython, pip, windows_path

ROOT = Path(__file__).parents[3]
PARTS = Path(__file__).parent / "windows_compiler"
MINGW = Path("/usr/x86_64-w64-mingw32")
VS = "Program Files (x86)/Microsoft Visual Studio"
SYSTEM = (
    "advapi32",
    "comdlg32",
    "gdi32",
    "kernel32",
    "ole32",
    "oleaut32",
    "shell32",
    "user32",
    "uuid",
    "winspool",
)
RUNTIME = ("mingw32", "mingwex", "moldname", "msvcrt")
BUILD = "30133"
NEWER = "14.44.35207"
# The compiler is in the folder of its toolset, as Visual Studio has it: nvcc.exe looks above that
# for vcvarsall.bat, by which it knows that the compiler is Microsoft's, and starts vcvars64.bat
# there. Not below "Program Files": nvcc.exe would quote the path in a way that Wine's cmd does not
# read.
TOOLSETS = "studio/VC/Tools/MSVC"
VCVARS = r"""@echo off
set "VCToolsVersion={toolset}"
set "VCINSTALLDIR=%~dp0..\..\"
set "INCLUDE=C:\vc\sdk"
set "PATH=C:\studio\VC\Tools\MSVC\{toolset}\bin\Hostx64\x64;C:\vc\bin;%PATH%"
"""
# As Microsoft's: without -vcvars_ver it sets up the newest toolset.
VCVARS64 = r"""@echo off
>> C:\vc\vcvars64.log echo set up {newer}
set "VCToolsVersion={newer}"
set "INCLUDE=C:\vc\newer;%INCLUDE%"
"""
AS_MSVC = (
    "-U__clang__ -U__GNUC__ -U__GNUG__ -U__MINGW32__ -U__declspec -D_MSVC_LANG=201402L "
    "-D_MSC_VER={0} "
    "-D_MSC_FULL_VER={0}{1} -D_MSC_BUILD=0 -D_M_X64 -D_M_AMD64 -D_NATIVE_WCHAR_T_DEFINED=1"
)
# In place of CUDA's own, which includes Microsoft's headers: device code needs none of them.
DEVICE_HEADER = """#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include "crt/host_defines.h"
#include "vector_types.h"
#include "device_launch_parameters.h"
"""
ENSUREPIP = """
import sys, sysconfig, zipfile
from pathlib import Path
[wheel] = Path(__file__).parent.glob("*.whl")
zipfile.ZipFile(wheel).extractall(sysconfig.get_path("purelib"))
"""


class Toolchain:
    """Compilers and Python on the disk `c` of a Wine prefix."""

    def __init__(
        self,
        c: Path,
        python: WindowsPython,
        folder: Path,
        need: Callable[[str, str], None],
        plan: Plan,
    ) -> None:
        assert plan.windows
        self.c, self.python, self.folder, self.pins = c, python, folder, plan.windows
        self.vs = f"{VS}/{plan.windows.visual_studio}/BuildTools"
        versions = sorted(Path("/usr/lib/gcc/x86_64-w64-mingw32").glob("*-win32/include/c++"))
        if not versions:
            need("MinGW's C++ library", "install the Debian package g++-mingw-w64-x86-64")
        self.gcc = versions[-1].parents[1]
        done = pip(
            "download", "--require-hashes", "-r", str(PARTS / "wheels.txt"), "-d", str(folder)
        )
        if done.returncode:
            need("compilers for Windows from the Python index", done.stderr.strip()[-300:])
        for name in ("launch", "rc"):
            command = [
                GCC,
                "-O1",
                "-s",
                "-static",
                "-o",
                folder / f"{name}.exe",
                PARTS / f"{name}.c",
            ]
            subprocess.run(command, check=True, timeout=TIMEOUT_S)
        self._clang()
        self._visual_studio()
        self._python(need)

    def _unpack(self, wheel: str, prefix: str, target: Path) -> None:
        [path] = self.folder.glob(wheel)
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.startswith(prefix) and not name.endswith("/"):
                    place = target / name.removeprefix(prefix).lstrip("/")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(name) as body, place.open("wb") as out:
                        shutil.copyfileobj(body, out)

    def launcher(self, place: str, *lines: str) -> None:
        exe = self.c / f"{place}.exe"
        exe.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / "launch.exe", exe)
        exe.with_suffix(".txt").write_text("\r\n".join(lines) + "\r\n")

    @property
    def _headers(self) -> list[str]:
        """Folders of headers in the order of a MinGW compiler."""
        library = self.gcc / "include/c++"
        unix = [library, library / "x86_64-w64-mingw32"]
        return [f"Z:{path}" for path in unix] + ["C:/clang/include", f"Z:{MINGW}/include"]

    def _clang(self) -> None:
        self._unpack("ziglang-*.whl", "ziglang/zig.exe", self.c / "clang/zig.exe")
        self._unpack("ziglang-*.whl", "ziglang/lib/include/", self.c / "clang/include")
        clang = r"C:\clang\zig.exe clang --driver-mode=cl --target=x86_64-w64-windows-gnu"
        # With that target clang leaves cl's own options of optimisation and instruction sets out.
        own = "-Wno-unused-command-line-argument /clang:-O2 /clang:-std=c++14 /GS-"
        headers = " ".join(f"/clang:-isystem /clang:{folder}" for folder in self._headers)
        as_msvc = AS_MSVC.format(msc_ver(self.pins.toolset), BUILD)
        self.launcher(
            "vc/bin/cl",
            f"{clang} {own} -nostdinc /clang:-nostdinc++ {headers}",
            "?/arch:AVX /clang:-mavx",
            "?/arch:AVX2 /clang:-mavx2 /clang:-mfma /clang:-mf16c /clang:-mbmi /clang:-mbmi2",
            f"?CompilerId {as_msvc}",
            # nvcc.exe: it asks for the version, then for the text of device code by a response
            # file.
            rf"?tmpxft_ {as_msvc} -w -IC:\vc\device",
        )
        device = self.c / "vc/device/cuda_runtime.h"
        device.parent.mkdir(parents=True)
        device.write_text(DEVICE_HEADER)
        library = self.c / "vc/lib"
        library.mkdir()
        for name in (*SYSTEM, *RUNTIME):
            shutil.copy(MINGW / f"lib/lib{name}.a", library / f"{name}.lib")
        for path in (MINGW / "lib/crt2.o", MINGW / "lib/dllcrt2.o"):
            shutil.copy(path, library)
        for name in ("crtbegin.o", "crtend.o", "libgcc.a", "libgcc_eh.a", "libstdc++.a"):
            shutil.copy(self.gcc / name, library)
        # std::random_device asks the CPU and takes RDSEED where it is; it comes with std::string,
        # and nobody calls it.
        command = ["x86_64-w64-mingw32-ar", "d", library / "libstdc++.a", "random.o"]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)
        c_runtime = " ".join(f"{name}.lib" for name in RUNTIME)
        self.launcher(
            "vc/bin/link",
            r"C:\clang\zig.exe lld-link -lldmingw -alternatename:__image_base__=__ImageBase "
            r"-nodefaultlib",
            "-alternatename:_ZNSt13random_device7_M_initEPKcy=abort",
            r"-libpath:C:\vc\lib C:\vc\lib\crtbegin.o",
            r"?/dll -entry:DllMainCRTStartup C:\vc\lib\dllcrt2.o",
            r"!/dll -entry:mainCRTStartup C:\vc\lib\crt2.o",
            f"+libstdc++.a libgcc.a libgcc_eh.a {c_runtime} libgcc.a kernel32.lib advapi32.lib "
            "shell32.lib user32.lib",
            r"+C:\vc\lib\crtend.o",
        )

    def _visual_studio(self) -> None:
        shutil.copy(self.folder / "rc.exe", self.c / "vc/bin" / "rc.exe")
        self.launcher("vc/bin/mt", r"C:\windows\system32\cmd.exe /c exit 0 &rem")
        self.launcher("vc/bin/lib", r"C:\clang\zig.exe lib")
        self.launcher(f"{VS}/Installer/vswhere", "=C:\\" + self.vs.replace("/", "\\"))
        toolset = f"{self.pins.toolset}.{BUILD}"
        self.launcher(f"{self.vs}/VC/Tools/MSVC/{toolset}/bin/Hostx64/x64/cl", r"C:\vc\bin\cl.exe")
        (self.c / "vc/sdk").mkdir()
        (self.c / "vc/sdk/windows.h").touch()
        script = self.c / self.vs / "VC/Auxiliary/Build/vcvarsall.bat"
        script.parent.mkdir(parents=True)
        script.write_text(VCVARS.format(toolset=toolset).replace("\n", "\r\n"))
        newest = self.c / "studio/VC/Auxiliary/Build/vcvars64.bat"
        newest.parent.mkdir(parents=True)
        newest.write_text(VCVARS64.format(newer=NEWER).replace("\n", "\r\n"))
        shutil.copy(newest, newest.with_name("vcvarsall.bat"))
        for each in (toolset, NEWER):
            self.launcher(f"{TOOLSETS}/{each}/bin/Hostx64/x64/cl", r"C:\vc\bin\cl.exe")

    def _python(self, need: Callable[[str, str], None]) -> None:
        """What a Python of python.org has beside the interpreter: headers, import libraries,
        ensurepip.
        """
        headers = Path(sysconfig.get_path("include"))
        if not (headers / "Python.h").is_file():
            need(
                "the headers of Python",
                f"{headers} has no Python.h; install the Debian package python3-dev",
            )
        home = self.python.folder
        shutil.copytree(
            headers,
            home / "Include",
            ignore=shutil.ignore_patterns("pyconfig*.h"),
            dirs_exist_ok=True,
        )
        shutil.copy(PARTS / "pyconfig.h", home / "Include/pyconfig.h")
        (home / "libs").mkdir(exist_ok=True)
        self._import_library(home / "python3.dll", home / "libs/python3.lib")
        ensurepip = home / "Lib/ensurepip"
        ensurepip.mkdir(exist_ok=True)
        (ensurepip / "__init__.py").write_text("")
        (ensurepip / "__main__.py").write_text(ENSUREPIP)
        [wheel] = self.folder.glob("pip-*.whl")
        shutil.copy(wheel, ensurepip)

    def _import_library(self, dll: Path, target: Path) -> None:
        with pefile.PE(str(dll), fast_load=True) as pe:
            pe.parse_data_directories([pefile.DIRECTORY_ENTRY["IMAGE_DIRECTORY_ENTRY_EXPORT"]])
            names = [
                symbol.name.decode() for symbol in pe.DIRECTORY_ENTRY_EXPORT.symbols if symbol.name
            ]
        definition = self.folder / f"{dll.stem}.def"
        definition.write_text(
            f"LIBRARY {dll.name}\nEXPORTS\n" + "".join(f"{name}\n" for name in names)
        )
        command = ["x86_64-w64-mingw32-dlltool", "-d", definition, "-l", target]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)

    def toolkit(self, plan: Plan) -> None:
        """The plan's CUDA folder of version 11, with the receipt of the installer, and
        `archives`.
        """
        assert plan.toolkit
        home = self.c / plan.env["CUDA_HOME"].removeprefix("C:/")
        if home.exists():
            return
        runtime = "nvidia_cuda_runtime_cu11-*.whl"
        self._unpack(runtime, "nvidia/cuda_runtime/include/", home / "include")
        self._unpack(
            runtime, "nvidia/cuda_runtime/bin/cudart64_110.dll", home / "bin/cudart64_110.dll"
        )
        self._unpack(
            "nvidia_cuda_nvcc_cu11-*.whl", "nvidia/cuda_nvcc/bin/ptxas.exe", home / "bin/ptxas.exe"
        )
        self._unpack(
            "nvidia_cuda_nvcc_cu11-*.whl", "nvidia/cuda_nvcc/include/crt/", home / "include/crt"
        )
        self._unpack(
            "nvidia_cuda_nvcc-13*.whl", "nvidia/cu13/bin/fatbinary.exe", home / "bin/fatbinary.exe"
        )
        (home / "lib/x64").mkdir(parents=True)
        self._import_library(home / "bin/cudart64_110.dll", home / "lib/x64/cudart.lib")
        self._nvcc(plan, home)
        receipt = {
            "schema": 1,
            "archives": {each.component: each.sha256 for each in plan.toolkit.archives},
        }
        (home / ".redist.json").write_text(json.dumps(receipt))
        self.archives()

    def archives(self) -> None:
        """C:\\farm\\tools, with the receipts of whoever would have fetched them."""
        (self.c / "farm/tools").mkdir(parents=True, exist_ok=True)
        for tool in self.pins.tools:
            (self.c / f"farm/tools/{tool.name}.ok").write_text(tool.sha256)
        self.launcher(
            "farm/tools/sccache/sccache",
            r"?--stop-server C:\windows\system32\cmd.exe /c exit 0 &rem",
        )

    def _nvcc(self, plan: Plan, home: Path) -> None:
        tools = home / "stand-in"
        tools.mkdir()
        for name in ("nvcc.py", "device.h"):
            shutil.copy(PARTS / name, tools)
        folder = f"{plan.env['CUDA_HOME']}/stand-in".replace("/", "\\")
        binaries = plan.env["CUDA_HOME"].replace("/", "\\") + r"\bin"
        clang = [
            r"C:\clang\zig.exe",
            "clang",
            "-x",
            "cuda",
            "--cuda-device-only",
            "-nocudainc",
            "-nocudalib",
            "-O3",
        ]
        clang += ["--target=x86_64-w64-windows-gnu", "-std=c++14", "-nostdinc", "-nostdinc++"]
        clang += [word for each in self._headers for word in ("-isystem", each)]
        settings = {
            "release": plan.toolkit.cuda if plan.toolkit else "",
            "clang": [*clang, "-include", rf"{folder}\device.h"],
            "ptxas": rf"{binaries}\ptxas.exe",
            "fatbinary": rf"{binaries}\fatbinary.exe",
        }
        (tools / "settings.json").write_text(json.dumps(settings))
        place = plan.env["CUDA_HOME"].removeprefix("C:/")
        self.launcher(f"{place}/bin/nvcc", rf"{windows_path(self.python.exe)} {folder}\nvcc.py")

    def kit(self, plan: Plan, target: Path) -> Path:
        """The rendered job of a plan in `target`."""
        render(ROOT, plan).write(target)
        return target / "job"

    def remove(self, *more: str) -> None:
        for name in ("clang", "farm", "studio", "vc", VS, *more):
            shutil.rmtree(self.c / name, ignore_errors=True)
