"""Builds a plan from a bundle, on a machine without network, Docker or the farm: Python 3.9+, root, nothing else.

    run [--wait-s S] [--jobs N] [--out DIR]    join, verify, unpack and build; call it again to continue
    run --check                                what is there, what is missing, can this machine do it

The pieces of the wheel go back to the farm: `farm submit --from-bundle DIR` joins them and does all that follows.

The build goes on in the background when the time of one call is over; the next call finds it. A machine that was
switched off in between goes on with the objects that it had. Exit codes: 0 done, 2 a part is damaged, 5 the build
failed, 9 this machine cannot do it, 10 call again: parts are missing, the build goes on, or pieces are left.

The way through: `main` reads the arguments, `unpack` joins the parts, `toolchain` makes the toolchain's tree a root
file system, `build` starts and follows the job, `result` cuts the wheel into pieces.
"""
