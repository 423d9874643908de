"""coda: Transformer blocks as GEMM-epilogue programs.

A program is a few lines of mathematics: one matrix product and what follows it. This package parses programs, compiles them
for a device and runs them on any array (NumPy, CuPy, PyTorch, the buffer protocol). It needs the library `libcoda.so` and
nothing else; `coda.torch` needs PyTorch.

    import coda, numpy as np

    program = coda.standard_module()["gemm_swiglu"]
    kernel = coda.Device("cpu").kernel(program.module.retype("bf16", "f32")["gemm_swiglu"])
    a, wg, wu = (np.random.rand(*s).astype("f") for s in ((4, 8), (16, 8), (16, 8)))
    g, u, y = (np.empty((4, 16), "f") for _ in range(3))
    kernel(A=a, Wg=wg, Wu=wu, G=g, U=u, Y=y)
"""

from ._device import Device, Kernel, Tensor
from ._errors import DeviceError, Error, InvalidError, UnsupportedError
from ._library import VERSION as __version__, load as _load
from ._program import Module, Operand, Program, standard_module

__all__ = [
    "Device", "DeviceError", "Error", "InvalidError", "Kernel", "Module", "Operand", "Program", "Tensor",
    "UnsupportedError", "standard_module",
]

_load()  # an ImportError here says which library is missing
