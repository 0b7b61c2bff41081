"""Plans: one build, fully resolved. Pure data, JSON, content-addressed, with the origin of every
value.

The way through, top to bottom:

- `selectors`: what was asked for, the candidate that follows (channel, recipe, every option), what
stands against it.
- `environment` and `inputs`: the features and variables of the build, its version, its source and
toolkit.
- `build`: `resolve`, which goes that way and makes the plan.
- `file`: the shape of a plan, its digest, how it is read back.
"""
