"""Builds a plan from a bundle, on a machine without network, Docker or the farm: Python 3.9+, nothing else.

    run --check                                can this machine do it, which parts are here; nothing is unpacked
    run [--jobs N] [--out DIR]                 join, verify, unpack, build, and follow it to its end

Root and ordinary users alike enter the toolchain by `farm.base.enter`. The result goes back to the farm:
`farm submit --from-bundle DIR` joins its pieces and does all that follows.

The build runs in the background: a call that ends before it, by Ctrl-C or `--wait-s`, does not end it, and the same
command finds it again. A machine that was switched off in between goes on with the objects that it had.
"""
