"""How this build was made; reached as `canary.__config__`."""

from canary import _C


def show() -> str:
    """A readable text: compiler, flags, CUDA version, architectures, build options."""
    return _C.build_info()[3]
