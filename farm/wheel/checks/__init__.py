"""The checks of `farm verify`: does a wheel hold what its name promises?

A check is one module with a function `check(subject) -> Check` (`device` has two), the texts of
its findings as functions beside it, and one line in `registry.CHECKS`. A finding says what is
wrong, why it matters and what to do, for the person who has to act.

Sources: PyPA specifications, "Binary distribution format" and "Core metadata"; CPython's
`_PyImport_DynLoadFiletab` (`Python/dynload_shlib.c`, `dynload_win.c`), `PLATFORM_TRIPLET` of its
`configure.ac` and `PC/pyconfig.h` (python311.dll, python3.dll); PEP 3149 and PEP 489
(`PyInit_NAME`), PEP 384 and PEP 803 (abi3, abi3t), PEP 425 (tags).
"""
