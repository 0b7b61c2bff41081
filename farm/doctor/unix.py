"""Checks of Linux and macOS: what builds there."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from farm.detect.machine import NoReadingError
from farm.doctor.findings import Finding, Patient, missing, ok, warning
from farm.engines.base import SOCKET_HINT, elsewhere_hint


def engine(patient: Patient) -> Iterator[Finding]:
    """The Docker engine that Linux builds run in."""
    try:
        answer = patient.site.run("docker", "info", "--format", "{{json .}}")
    except NoReadingError:
        yield missing("Docker", "docker is not on PATH", "install docker.io (Debian, Ubuntu) or Docker Engine")
        return
    info = _document(answer.text)
    # Where the server does not answer, a template that names its fields ends in an error of the template alone
    # (Docker 28); as JSON, the reason stands in a field.
    reasons = info.get("ServerErrors") or []
    system = info.get("OSType")
    if answer.code == 0 and system == "linux" and not reasons:
        yield ok("Docker", f"linux {info.get('ServerVersion')} {info.get('Architecture')}")
    elif system and system != "linux":
        yield missing("Docker", f"this engine runs {system} containers", "switch it to Linux containers")
    else:
        reason = str(reasons[0]) if reasons else next(reversed(answer.text.strip().splitlines()), "no answer")
        address = _address(patient)
        if todo := elsewhere_hint(address):
            yield missing("Docker", f"no engine answers at {address}: {reason}", todo)
        elif "permission denied" in reason.lower():
            yield missing("Docker", "this user may not use the engine: no permission for its socket", SOCKET_HINT)
        else:
            yield missing("Docker", reason, "start the service (systemctl start docker) or set DOCKER_HOST")


def _address(patient: Patient) -> str:
    """Where `docker` looks for its engine: DOCKER_HOST's or the context's address; empty where it does not say."""
    try:
        return patient.site.run("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}").text.strip()
    except NoReadingError:
        return ""


def _document(text: str) -> dict[str, Any]:
    """The JSON object that a program printed on a line of its own, among its warnings; without one, an empty one."""
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line)
                return found if isinstance(found, dict) else {}
    return {}


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
