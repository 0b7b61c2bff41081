"""Programs for machines that have no farm, of the standard library alone; `farm.base.zipapps` packs
each.
"""
