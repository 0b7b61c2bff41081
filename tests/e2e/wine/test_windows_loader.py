"""What Windows' loader refuses of changed DLLs, verify refuses too: Wine is asked beside it.

Wine differs in one thing: where a function is missing it loads the DLL all the same, with a stub that ends the process
when it is called. Windows fails with error 127. So the program that loads looks each imported function up once more, by
the same GetProcAddress, which follows forwarders. What is loaded on the first call is asked for as the call would.
"""

import re
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from farm.wheel.policy import Policy
from farm.wheel.verify import verify
from tests.differential.drafts import Draft
from tests.differential.libraries import pe_at, pe_sections, put

GCC, DLLTOOL = "x86_64-w64-mingw32-gcc", "x86_64-w64-mingw32-dlltool"
TIMEOUT_S = 300
NOT_FOUND, NO_FUNCTION, BAD_FORMAT = 126, 127, 193  # ERROR_MOD_NOT_FOUND, _PROC_NOT_FOUND, _BAD_EXE_FORMAT
# Flags as Python and torch load: the DLL's own folder and the system's, no PATH.
LOADER = r"""
#include <windows.h>
#include <stdio.h>
#include <string.h>
static IMAGE_DATA_DIRECTORY *table(char *base, int which) {
    IMAGE_NT_HEADERS *headers = (void *)(base + ((IMAGE_DOS_HEADER *)base)->e_lfanew);
    return &headers->OptionalHeader.DataDirectory[which];
}
static DWORD functions(char *base, HMODULE from, DWORD names) {
    for (IMAGE_THUNK_DATA *each = (void *)(base + names); each->u1.AddressOfData; each++) {
        char *name = IMAGE_SNAP_BY_ORDINAL(each->u1.Ordinal)
            ? (char *)(ULONG_PTR)IMAGE_ORDINAL(each->u1.Ordinal)
            : (char *)((IMAGE_IMPORT_BY_NAME *)(base + each->u1.AddressOfData))->Name;
        if (!GetProcAddress(from, name)) return GetLastError();
    }
    return 0;
}
static DWORD load(const char *path) {
    char *base = (char *)LoadLibraryExA(path, NULL, 0x1100);
    if (!base) return GetLastError();
    char folder[MAX_PATH];
    strcpy(folder, path);
    *strrchr(folder, '\\') = 0;
    SetDllDirectoryA(folder);  /* for what is loaded late: as packages do that add their folder */
    DWORD error = 0;
    IMAGE_DATA_DIRECTORY *imports = table(base, 1), *delayed = table(base, 13);
    if (imports->VirtualAddress)
        for (IMAGE_IMPORT_DESCRIPTOR *each = (void *)(base + imports->VirtualAddress); each->Name && !error; each++)
            error = functions(base, GetModuleHandleA(base + each->Name), each->OriginalFirstThunk);
    if (delayed->VirtualAddress)
        for (DWORD *each = (DWORD *)(base + delayed->VirtualAddress); each[1] && !error; each += 8) {
            HMODULE from = LoadLibraryA(base + each[1]);
            error = from ? functions(base, from, each[4]) : GetLastError();
            if (from) FreeLibrary(from);
        }
    SetDllDirectoryA(NULL);
    FreeLibrary((HMODULE)base);
    return error;
}
int main(int argc, char **argv) {
    SetErrorMode(SEM_FAILCRITICALERRORS);
    for (int i = 1; i < argc; i++) {
        printf("%lu\n", load(argv[i]));
        fflush(stdout);
    }
    return 0;
}
"""
# What is compiled, by name: its source, and the lines of its .def file behind `LIBRARY`.
GIVE = "int give(void) { return 1; }"
TAKE = "__declspec(dllimport) int give(void); int run(void) { return give(); }"
# The directory of what is loaded on the first call, as Microsoft's linker makes it of /DELAYLOAD: gives.dll's `give`.
LATE = r"""
asm(".section .didat,\"dw\"\n"
    ".long 1\n .rva 1f, 2f, 3f, 4f\n .long 0, 0, 0\n .space 32\n"
    "1: .asciz \"gives.dll\"\n .balign 8\n"
    "2: .quad 0\n"
    "3: .quad 0, 0\n"
    "4: .rva 5f\n .long 0\n .quad 0\n"
    "5: .word 0\n .asciz \"give\"\n"
    ".text\n");
int run(void) { return 1; }
"""
SOURCES = {
    "gives": (GIVE, "EXPORTS\n give @3"),
    "gives another": ("int other(void) { return 1; }", "EXPORTS\n other"),
    "forwards to kernel32": ("", "EXPORTS\n give = KERNEL32.GetTickCount"),
    "forwards to nothing": ("", "EXPORTS\n give = KERNEL32.NoSuchFunction"),
    "forwards to absent": ("", "EXPORTS\n give = absent.give"),
    "forwards to helpful": ("", "EXPORTS\n give = helpful.give"),
    "forwards to forgetful": ("", "EXPORTS\n give = forgetful.give"),
    "takes": (TAKE, "EXPORTS\n run"),
    "takes by ordinal": (TAKE, "EXPORTS\n run"),
    "takes ordinal 7": (TAKE, "EXPORTS\n run"),
    "takes of kernel32": (TAKE, "EXPORTS\n run"),
    "takes late": (LATE, "EXPORTS\n run"),
}
# What their import libraries say: DLL, and how its function is known.
IMPORTS = {
    "takes": ("gives.dll", "give"),
    "takes by ordinal": ("gives.dll", "give @3 NONAME"),
    "takes ordinal 7": ("gives.dll", "give @7 NONAME"),
    "takes of kernel32": ("kernel32.dll", "give"),
}
Files = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """A wheel of DLLs that were changed.

    Attributes:
        error: What Windows' loader says of `own/takes.dll`; 0: nothing.
        cause: What verify has to find (a pattern); None: nothing.
        files: The DLLs in the folder `own` that are not `takes` and `gives`: compiled, None: missing.
        change: Changes the bytes of `own/takes.dll`.
    """

    error: int
    cause: str | None
    files: Mapping[str, str | None] = field(default_factory=dict)
    change: Callable[[bytes], bytes] = lambda data: data


def renamed(name: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Another name, of the same length or shorter."""
    return lambda data: data.replace(name + b"\0", new.ljust(len(name), b"\0") + b"\0")


CASES = {
    "good": Case(0, None),
    "other case": Case(0, None, {"gives.dll": None, "GIVES.Dll": "gives"}),
    "by ordinal": Case(0, None, {"takes.dll": "takes by ordinal"}),
    "forwarded": Case(0, None, {"gives.dll": "forwards to kernel32"}),
    "forwarded in the wheel": Case(0, None, {"gives.dll": "forwards to helpful", "helpful.dll": "gives"}),
    "missing DLL": Case(NOT_FOUND, "needs gives.dll, which is neither", {"gives.dll": None}),
    "elsewhere in the wheel": Case(
        NOT_FOUND, "gives.dll, which lies at", {"gives.dll": None, "far/gives.dll": "gives"}
    ),
    "another DLL": Case(NOT_FOUND, "needs give.dll", change=renamed(b"gives.dll", b"give.dll")),
    "another Python": Case(NOT_FOUND, "python39", change=renamed(b"gives.dll", b"python39")),
    "missing function": Case(NO_FUNCTION, "takes give from gives.dll", {"gives.dll": "gives another"}),
    "missing ordinal": Case(NO_FUNCTION, "takes #7 from gives.dll", {"takes.dll": "takes ordinal 7"}),
    "name in another case": Case(NO_FUNCTION, "takes Give from", change=renamed(b"give", b"Give")),
    "forwarded to nothing": Case(NO_FUNCTION, "forwarded to KERNEL32.NoSuch", {"gives.dll": "forwards to nothing"}),
    "forwarded to a missing DLL": Case(NO_FUNCTION, "forwarded to absent.give", {"gives.dll": "forwards to absent"}),
    "forwarded to another": Case(
        NO_FUNCTION,
        "forwarded to forgetful.give",
        {"gives.dll": "forwards to forgetful", "forgetful.dll": "gives another"},
    ),
    "own kernel32": Case(NO_FUNCTION, "own kernel32.dll", {"kernel32.dll": "gives", "takes.dll": "takes of kernel32"}),
    "not of kernel32": Case(NO_FUNCTION, "takes give from kernel32.dll", {"takes.dll": "takes of kernel32"}),
    "late": Case(0, None, {"takes.dll": "takes late"}),
    "late, missing DLL": Case(NOT_FOUND, "needs gives.dll, which", {"takes.dll": "takes late", "gives.dll": None}),
    "late, missing function": Case(
        NO_FUNCTION, "takes give from", {"takes.dll": "takes late", "gives.dll": "gives another"}
    ),
    "32 bits": Case(BAD_FORMAT, "built for win32", change=lambda data: put(data, pe_at(data), "H", 0x14C)),
    "ARM64": Case(BAD_FORMAT, "built for arm64", change=lambda data: put(data, pe_at(data), "H", 0xAA64)),
    # Windows says 193 of it.
    "its DLL for ARM64": Case(NOT_FOUND, "built for arm64", {"gives.dll": "gives on ARM64"}),
    "half": Case(BAD_FORMAT, "damaged", change=lambda data: data[: len(data) // 2]),
    "empty": Case(BAD_FORMAT, "is named as a library, and is none", change=lambda _: b""),
    "headers only": Case(BAD_FORMAT, "damaged", change=lambda data: data[:512]),
    "text": Case(BAD_FORMAT, "is named as a library, and is none", change=lambda _: b"not a DLL\n" * 99),
    "no signature": Case(BAD_FORMAT, "damaged", change=lambda data: put(data, pe_at(data) - 4, "I", 0)),
    "magic": Case(BAD_FORMAT, "damaged", change=lambda data: put(data, pe_at(data) + 20, "H", 0x999)),
    "section beyond": Case(
        BAD_FORMAT, "damaged", change=lambda data: put(data, pe_sections(data)[0] + 20, "I", 1 << 30)
    ),
}


def run(*command):
    subprocess.run([str(word) for word in command], check=True, timeout=TIMEOUT_S)


def compiled(folder):
    """The bytes of each of SOURCES. Tiny: without a C library."""
    found = {}
    for number, (name, (source, exports)) in enumerate(SOURCES.items()):
        made = folder / f"made{number}.dll"
        code = folder / f"{number}.c"
        code.write_text(source)
        lines = folder / f"{number}.def"
        lines.write_text(f"LIBRARY {made.name}\n{exports}\n")
        libraries = []
        if name in IMPORTS:
            dll, function = IMPORTS[name]
            asked = folder / f"{number}-imports.def"
            asked.write_text(f"LIBRARY {dll}\nEXPORTS\n {function}\n")
            libraries = [folder / f"lib{number}.a"]
            run(DLLTOOL, "-d", asked, "-l", libraries[0])
        run(GCC, "-O1", "-shared", "-s", "-nostdlib", "-Wl,--entry=0", "-o", made, code, lines, *libraries)
        found[name] = made.read_bytes()
    found["takes late"] = with_delay_loads(found["takes late"])
    found["gives on ARM64"] = put(found["gives"], pe_at(found["gives"]), "H", 0xAA64)
    return found


def with_delay_loads(data):
    """With the place of that directory in the headers, which MinGW's linker leaves empty."""
    [section] = [at for at in pe_sections(data) if data[at : at + 8].startswith(b".didat")]
    size, address = struct.unpack_from("<II", data, section + 8)
    return put(data, pe_at(data) + 20 + 112 + 13 * 8, "II", address, size)


def wheel_of(case, dlls, folder):
    """The changed wheel, and the same files installed."""
    files = {"takes.dll": dlls["takes"], "gives.dll": dlls["gives"]}
    for name, which in case.files.items():
        if which is None:
            files.pop(name)
        else:
            files[name] = dlls[which]
    files["takes.dll"] = case.change(files["takes.dll"])
    for name, content in files.items():
        path = folder / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    members = {"own/__init__.py": b"", **{f"own/{name}": content for name, content in files.items()}}
    members["own-1.0.dist-info/METADATA"] = b"Metadata-Version: 2.1\nName: own\nVersion: 1.0\n"
    members["own-1.0.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-win_amd64\n"
    return Draft("own-1.0-py3-none-win_amd64.whl", "own-1.0.dist-info", members).write(folder)


def test_what_the_loader_refuses_is_refused(wine, tmp_path):
    dlls = compiled(tmp_path)
    (tmp_path / "load.c").write_text(LOADER)
    run(GCC, "-O1", "-static", "-o", tmp_path / "load.exe", tmp_path / "load.c")
    wheels = {}
    for number, (name, case) in enumerate(CASES.items()):
        folder = tmp_path / f"case-{number}"
        folder.mkdir()
        wheels[name] = wheel_of(case, dlls, folder)
    libraries = [f"Z:{wheel.parent / 'own' / 'takes.dll'}".replace("/", "\\") for wheel in wheels.values()]
    command = ["wine", str(tmp_path / "load.exe"), *libraries]
    done = subprocess.run(command, env=wine, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    told = dict(zip(CASES, map(int, done.stdout.split()), strict=True))
    assert told == {name: case.error for name, case in CASES.items()}
    findings = {
        name: [f"{each.where}: {each.what}" for each in verify(wheel, Policy()).findings]
        for name, wheel in wheels.items()
    }
    wrong = {
        name: findings[name]
        for name, case in CASES.items()
        if not (any(re.search(case.cause, each) for each in findings[name]) if case.cause else not findings[name])
    }
    assert wrong == {}
