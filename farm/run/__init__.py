"""The main job: plan, image, build, repair, verify, publish, install, smoke. The order of the steps, not how they work.

- `run` writes a run into the journal and carries it out here; `dispatch` does so for detached runs, in the order of
  `queue`; `mainjob` has the steps of both: the build is submitted, followed and collected, with the job of `build`
  and the `inputs`.
- `backends` opens an engine, `build` makes its image.
- `release` (repair, verify, publish) and `smoke` are the short steps after it.
- `bundle` is the way over a machine without network.
"""
