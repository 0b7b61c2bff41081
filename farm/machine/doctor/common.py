"""Checks that hold on every system: memory, disk, cores, Python, Git, driver against GPU, nvcc against GPU."""

import re
from collections.abc import Iterator

from farm import catalog
from farm.machine.detect.hardware import driver_branch, driver_problem, judge_gpu, last_driver
from farm.machine.detect.machine import NoReadingError
from farm.machine.doctor.findings import GB, Finding, Patient, missing, needs, ok, warning
from farm.plan.recipe import recipe

GIT = r"C:\Program Files\Git\cmd\git.exe"
"""Where Git for Windows lies, whatever it did to PATH."""


def memory(patient: Patient) -> Iterator[Finding]:
    """Physical memory, what it and the page file allow together, and the number of compilers."""
    total, commit = patient.site.memory()
    wanted = needs()
    found = f"{total / GB:.1f} GB"
    # 2.2: what the recipe of torch says of one compile.
    per_job = patient.plan.memory_per_job_gb if patient.plan else 2.2
    least = wanted.memory_gb if patient.large else per_job
    if total < least * GB:
        what = "PyTorch" if patient.large else "one compiler"
        yield missing("memory", found, f"{least:g} GB are the least for {what}: use another machine")
    else:
        yield ok("memory", found)
    cores = patient.site.cores()
    jobs = max(1, min(cores, int(total / (per_job * GB))))
    yield ok("jobs", f"{jobs} compilers at once: {cores} cores, {per_job} GB each")
    if patient.large and patient.platform.limits_paths and commit < wanted.commit_gb * GB:
        what = patient.platform.swap
        yield warning(
            what,
            f"memory and {what} together {commit / GB:.1f} GB",
            f"enlarge the {what} until they are {wanted.commit_gb} GB, else a linker may run out of memory",
        )
    else:
        yield ok(patient.platform.swap, f"{commit / GB:.1f} GB with memory")


def disk(patient: Patient) -> Iterator[Finding]:
    """Free space where builds are made."""
    where = patient.platform.build_root
    wanted: float = needs().disk_gb
    what = "PyTorch"
    if patient.plan is not None and not (patient.large and patient.platform.limits_paths):
        what = patient.plan.package
        wanted = recipe(patient.plan.recipe).disk_gb + needs().image_gb
    free = patient.site.free(where)
    found = f"{free / GB:.0f} GB free on {where}"
    if free >= wanted * GB:
        yield ok("disk", found)
    elif patient.platform.limits_paths:
        yield missing(
            "disk", found, rf"{wanted:g} GB are needed: make room, or mkdir D:\farm, then mklink /J C:\farm D:\farm"
        )
    else:
        yield missing("disk", found, f"{wanted:g} GB are needed for a build of {what}: make room")


def python(patient: Patient) -> Iterator[Finding]:
    """The Python of the variant."""
    have = {found.name: found.path for found in patient.readings.pythons}
    if patient.plan is None:
        listed = ", ".join(have) or "none"
        yield ok("Python", listed) if have else missing("Python", listed, "install 64-bit Python 3.11 from python.org")
        return
    name = patient.plan.parsed_variant.python
    if name in have:
        yield ok("Python", f"{name}: {have[name]}")
    elif patient.platform.in_images:
        seen = f"no {name} here: the container builds with its own, but the wheel is not tested here"
        todo = f"have python{name[2]}.{name[3:]} on PATH: apt-get install, or uv python install {name[2]}.{name[3:]}"
        yield warning("Python", seen, todo)
    else:
        todo = f"install 64-bit Python {name[2]}.{name[3:]} from python.org"
        yield missing("Python", f"no {name}; there are: {', '.join(have) or 'none'}", todo)


def git(patient: Patient) -> Iterator[Finding]:
    """Git, and on Windows long paths in it."""
    try:
        reported = patient.site.run("git", "--version")
    except NoReadingError:
        # build.cmd looks there too.
        if patient.platform.limits_paths and patient.site.exists(GIT):
            yield ok("Git", GIT)
        elif patient.plan is not None and patient.plan.source.kind != "git":
            yield ok("Git", f"not on PATH; {patient.plan.package} needs none")
        else:
            yield missing("Git", "not on PATH", "install Git (Windows: Git for Windows)")
        return
    yield ok("Git", reported.text.strip())
    if patient.platform.limits_paths:
        answer = patient.site.run("git", "config", "--get", "core.longpaths")
        if answer.text.strip() == "true":
            yield ok("Git long paths", "core.longpaths is true")
        else:
            todo = "git config --global core.longpaths true (build.cmd sets it for its own calls)"
            yield warning("Git long paths", "core.longpaths is not set", todo)


def gpu(patient: Patient) -> Iterator[Finding]:
    """Each GPU with its driver: can the one drive the other?"""
    if not patient.platform.cuda:
        return
    if not patient.readings.gpus:
        why = "; ".join(m.why for m in patient.readings.missing if m.what.startswith("GPUs")) or "none found"
        yield warning("GPU", why, "none is needed to build; to use one, install its driver (Kepler: the 470 branch)")
    cuda = patient.plan.toolkit.cuda if patient.plan and patient.plan.toolkit else None
    for card in patient.readings.gpus:
        judged = judge_gpu(card, patient.readings.driver)
        found = f"{card.name} ({judged.sm or 'no variant'}), driver {patient.readings.driver or 'unknown'}"
        last, branch = last_driver(judged.sm) if judged.sm else None, driver_branch(patient.readings.driver)
        problem = driver_problem(cuda, patient.readings.driver, patient.readings.os.system)
        # First a driver that is too new for the card: it does not drive it at all, and an update would not help.
        if last and branch and branch > last:
            todo = f"remove it (DDU on Windows), install a driver of branch {last}, and none with a CUDA installer"
            yield missing("GPU driver", f"{found}: newer than {last}, the last branch for this GPU", todo)
        elif problem:
            yield missing("GPU driver", f"{found}: {problem}", f"install a newer driver, up to branch {last or 'any'}")
        else:
            yield ok("GPU driver", found)


def nvcc(patient: Patient) -> Iterator[Finding]:
    """The nvcc on PATH: which version, and whether it can make code for the GPU at all."""
    try:
        answer = patient.site.run("nvcc", "--version").text
    except NoReadingError:
        yield ok("nvcc", "none on PATH; the farm brings its own toolkit")
        return
    match = re.search(r"release (\d+\.\d+)", answer)
    toolkit = catalog.toolkits().get(match[1]) if match else None
    if match is None or toolkit is None:
        yield warning("nvcc", answer.strip()[:100], "the catalogue does not know this version; the farm brings its own")
        return
    wanted = sorted(patient.plan.parsed_variant.sms) if patient.plan else []
    # Without a plan, the cards of this machine are what nvcc should compile for.
    wanted = wanted or [_sm(card.capability) for card in patient.readings.gpus if card.capability]
    cannot = [sm for sm in wanted if sm not in toolkit.sm]
    if cannot:
        can = [name for name, other in catalog.toolkits().items() if all(sm in other.sm for sm in wanted)]
        names = ", ".join(f"sm_{sm}" for sm in cannot)
        todo = f"CUDA {', '.join(can)} can; the farm brings its own" if can else "no CUDA can: one GPU a build"
        yield warning("nvcc", f"CUDA {match[1]} cannot compile for {names}", todo)
    else:
        yield ok(
            "nvcc", f"CUDA {match[1]}" + (f" compiles for {', '.join(f'sm_{sm}' for sm in wanted)}" if wanted else "")
        )


def _sm(capability: str) -> int:
    major, minor = capability.split(".")
    return int(major) * 10 + int(minor)


USE = (("Python", python), ("GPU", gpu))
"""Checks of a machine that installs and uses wheels, whatever its system."""
BUILD = (("memory", memory), ("disk", disk), ("Git", git), ("nvcc", nvcc))
"""Checks of a machine that builds them."""
