"""The main job: the steps of a run, from a plan to a wheel that is published and smoke-tested, and
their order.
"""
