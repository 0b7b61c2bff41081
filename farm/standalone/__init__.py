"""Programs of one file each, sent to machines that have no farm: nothing here imports the farm at its top.

`bundle_run` travels in an offline bundle, `swarm_agent` as a Docker config. They need the standard library alone.
"""
