"""The static site beside the index: pick a wheel, see the farm. Data in, files out; it builds and publishes nothing.

The way through: `offers` has every build of the matrix, `state` what became of each; `payload` and `conflicts` are the
data of the selector, `pages` (with `charts`) and `feed` make the files, `build` writes those that changed.
"""
