"""Plans: one build, fully resolved. Pure data, JSON, content-addressed, with the origin of every
value.

The way through, top to bottom:

- `request`: what was asked for, resolved (channel, recipe, every option), and the verdict on it.
- `channel_choice`: the channel for a request that names none.
- `build_variables` and `materials`: the features and variables of the build, its version, its
source and toolkit.
- `resolve`: goes that way and makes the plan.
- `file`: the shape of a plan, its digest, how it is read back.
"""
