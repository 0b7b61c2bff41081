"""Programs for machines that have no farm. `farm.base.zipapps` makes one file of each, which is what is sent there.

`bundle` is the program `run` of an offline bundle, `agent` runs in the container of a swarm job. They need the standard
library alone; the oldest Python of each is in its docstring.
"""
