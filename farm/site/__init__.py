"""The static site beside the index: `wheels` reads the index and its smoke tests, `pages` writes
the files.
"""
