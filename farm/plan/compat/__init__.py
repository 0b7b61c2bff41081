"""Can it be built? Each rule gives the reason why not, the fact it rests on, and the nearest that
would work.

A reason is an error (it cannot be built) or a warning (it can, but not as the name says, or no one
knows). A fact that the catalogue marks as unconfirmed gives a warning. No error is a yes.

The way through: `stack` is what is checked; `rules` check it and give a `reason` each; `nearest`
looks for what would work instead. Of finished wheels: `official_wheels` are PyTorch's with CUDA,
`official` and `official_cpu` find the best one and give an `answer`, `other_makers` says who else
has one.
"""
