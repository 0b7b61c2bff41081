"""The probe: does an installed torch, or a module that speaks its interface, work on this machine?

A program of its own, for the standard library of Python 3.7 or newer and the module under test, on
Windows and Linux. `farm.base.zipapps` makes one file of it, which is what runs (`farm smoke` does
so by itself):

    python -m farm.base.zipapps farm.smoke.probe.main:main -o probe.pyz
    python probe.pyz --module torch --json report.json --expect-cuda 11.8 --expect-arch sm_35

Every check ends as passed, failed (with what was seen and what was expected) or not run (with the
reason), and is printed as it ends. The JSON file is written before and after every check, so a
crash loses nothing, and names the check that is running. A check that runs when the time is over
ends the probe, with the place where it hung on stderr.

The way through: `main` reads the arguments and says which checks are run in which order, `recorder`
runs them.
"""
