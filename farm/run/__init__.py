"""The main job: plan, image, build, repair, verify, publish, install, smoke. The order of the steps, not how they work.

The way through:

- `run` writes a run into the journal and carries it out here; `dispatch` does so for detached runs, in the order of
  `queue`, `mainjob` has the
  steps of both.
- `backends` opens an engine and makes the toolchain image; `buildstep` submits the build, follows and collects it, with
  the job of `build` and the folders of `inputs` (`needs`).
- `repair`, `check`, `release` and `smoke` are the short steps after it; `published` says that none of them is needed.
- `bundle` and `wheel_pieces` are the way over a machine without network.
"""
