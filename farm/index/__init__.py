"""The hosted wheel index: where its bytes lie, how a wheel gets in, what a client reads.

Knows indices, nothing of builds. Start with `farm.index.backends.open_store`, then `farm.index.publish.publish`
and `farm.index.check.check`.
"""
