"""In place of SGLang's own CPU kernels, which no registry has: every name is there, and using one says what is missing.

For a dense Llama with the torch-native attention backend none is called.
"""

from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., object]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_arguments: object, **_named: object) -> object:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build here")

    return missing
