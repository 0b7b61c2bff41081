"""Checks of Linux and macOS: what builds there."""

from collections.abc import Iterator

from farm.base.errors import NoRunnerError
from farm.machine.detect.machine import NoReadingError
from farm.machine.doctor.findings import Finding, Patient, missing, ok, warning
from farm.platforms.facts import DEFAULT


def engine(patient: Patient) -> Iterator[Finding]:
    """The engine that Linux builds run in, Docker's or Podman's: asked as builds ask it."""
    try:
        system, version, machine = patient.site.engine()
    except NoRunnerError as error:
        yield missing("Docker", str(error), error.hint or "look at the engine's own log")
        return
    if system == DEFAULT:
        yield ok("Docker", f"{system} {version} {machine}")
    else:
        yield missing("Docker", f"this engine runs {system} containers", "switch it to Linux containers")


def compiler(patient: Patient) -> Iterator[Finding]:
    """A C++ compiler: torch.compile asks for one; builds have their own in the container."""
    found = patient.site.which("g++") or patient.site.which("clang++")
    if found:
        yield ok("torch.compile: C++ compiler", found)
    else:
        yield warning("torch.compile: C++ compiler", "neither g++ nor clang++", "apt-get install g++")


def command_line_tools(patient: Patient) -> Iterator[Finding]:
    """Apple's compilers; macOS builds run on the machine itself."""
    try:
        answer = patient.site.run("xcode-select", "-p")
    except NoReadingError:
        answer = None
    if answer and answer.code == 0:
        yield ok("command line tools", answer.text.strip())
    else:
        yield missing("command line tools", "xcode-select names none", "xcode-select --install")


def build_tools(patient: Patient) -> Iterator[Finding]:
    """CMake and Ninja, which a build on the machine itself needs."""
    for name in ("cmake", "ninja"):
        found = patient.site.which(name)
        yield (
            ok(name, found)
            if found
            else missing(name, "not on PATH", f"python3 -m pip install {name}, or brew install {name}")
        )


LINUX_USE = (("torch.compile", compiler),)
LINUX_BUILD = (("Docker", engine),)
MACOS_BUILD = (("command line tools", command_line_tools), ("build tools", build_tools))
