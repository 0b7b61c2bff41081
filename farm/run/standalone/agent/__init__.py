"""Runs inside the container of a swarm job: inputs in, command under a time limit, log, output and report out.

Standard library only, Python 3.7 and newer: it runs on whatever Python the toolchain image has. `farm.base.zipapps`
makes one file of it, which the container gets as a Docker config; a second config, the manifest (JSON, gzip), says what
to do and holds the signed URLs. It writes nothing to its own output but what went wrong with itself.
"""
