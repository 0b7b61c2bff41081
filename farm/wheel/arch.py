"""GPU architectures as CUDA names them: 90 for sm_90, "90a" and "100f" for code of one GPU or one family.

`90a` uses what no other GPU has and runs on compute capability 9.0 alone; `100f` on its family, equal or higher minor
versions of one major one (CUDA C++ Programming Guide, "Compute Capabilities", "Family- and Architecture-Specific").
"""


def number(arch: int | str) -> int:
    """90 of 90 and of `90a`."""
    return arch if isinstance(arch, int) else int(arch[:-1])


def order(arch: int | str) -> tuple[int, str]:
    """A key to sort by: 90, `90a`, 100."""
    return number(arch), "" if isinstance(arch, int) else arch[-1:]


def runs_on(gpu: int | str, code: int | str) -> bool:
    """True if machine code for `code` runs on a GPU (`farm.catalog.binary`); code of one GPU runs on that one alone."""
    from farm.catalog.binary import sass_runs  # noqa: PLC0415 (slow to import, and repair does without)

    if isinstance(gpu, str):
        return gpu == code
    return sass_runs(number(code), gpu, order(code)[1])


def is_code_for(promised: int | str, code: int | str) -> bool:
    """True if `code` was compiled for the promised architecture: 90 and `90a` for 90, `90a` alone for `90a`."""
    return promised == code or (isinstance(promised, int) and number(code) == promised)
