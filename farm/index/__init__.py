"""The hosted wheel index; knows nothing of builds. Start with `backends.open_store`, then `publish`
and `reconcile`.
"""
