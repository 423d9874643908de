"""Finds libcoda.so and declares the functions of include/coda.h."""

import ctypes
import ctypes.util
import functools
import os
import pathlib

c_int, c_int64, c_double, c_size_t, c_char_p, c_void_p = (
    ctypes.c_int, ctypes.c_int64, ctypes.c_double, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p)

# In the order of coda_dtype.
DTYPES = ("f32", "bf16", "f16", "e4m3", "e5m2", "i32")
DTYPE_SIZE = (4, 2, 2, 1, 1, 4)
MAX_DIMS = 24
VERSION = "0.1.0"  # of the library that the structures and functions below are those of


class ErrorStruct(ctypes.Structure):
    _fields_ = [("status", c_int), ("message", ctypes.c_char * 4096)]


class OperandStruct(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("role", c_int), ("dtype", c_int), ("rank", c_int),
                ("dim", (ctypes.c_char * 64) * 2)]


class AxisStruct(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("derived", c_int), ("fixed", c_int)]


class _DimStruct(ctypes.Structure):
    _fields_ = [("axis", c_char_p), ("size", c_int64)]


class DimsStruct(ctypes.Structure):
    _fields_ = [("count", c_int), ("item", _DimStruct * MAX_DIMS)]


class TensorStruct(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("rank", c_int), ("shape", c_int64 * 2), ("stride", c_int64)]


class CostStruct(ctypes.Structure):
    _fields_ = [("flops", c_double), ("elementwise_flops", c_double), ("bytes", c_double), ("unfused_bytes", c_double),
                ("unfused_kernels", c_int)]


class RewriteOptionsStruct(ctypes.Structure):
    _fields_ = [("backward", c_int), ("allow_passes", c_int), ("without", c_int), ("dims", ctypes.POINTER(DimsStruct)),
                ("save", c_char_p), ("exponentials", c_int)]


class OptionsStruct(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tile_rows", c_int), ("tile_columns", c_int), ("schedule", c_char_p),
                ("exact", c_int), ("sets", c_int)]


_P = ctypes.POINTER
_error = _P(ErrorStruct)

# name: (result, arguments)
_FUNCTIONS = {
    "coda_version": (c_char_p, []),
    "coda_free": (None, [c_void_p]),
    "coda_convert": (None, [c_void_p, c_int, c_void_p, c_int, c_int64]),
    "coda_module_parse": (c_int, [c_char_p, c_size_t, c_char_p, _P(c_void_p), _error]),
    "coda_module_load": (c_int, [c_char_p, _P(c_void_p), _error]),
    "coda_standard_module": (c_int, [_P(c_void_p), _error]),
    "coda_module_retype": (c_int, [c_void_p, c_int, c_int, _P(c_void_p), _error]),
    "coda_module_size": (c_int, [c_void_p]),
    "coda_module_program": (c_void_p, [c_void_p, c_int]),
    "coda_module_find": (c_void_p, [c_void_p, c_char_p]),
    "coda_module_free": (None, [c_void_p]),
    "coda_program_name": (c_char_p, [c_void_p]),
    "coda_program_is_block": (c_int, [c_void_p]),
    "coda_program_text": (c_void_p, [c_void_p]),
    "coda_program_operand_count": (c_int, [c_void_p]),
    "coda_program_operand": (c_int, [c_void_p, c_int, _P(OperandStruct)]),
    "coda_program_condition": (c_int, [c_void_p]),
    "coda_program_axis_count": (c_int, [c_void_p]),
    "coda_program_axis": (c_int, [c_void_p, c_int, _P(AxisStruct)]),
    "coda_program_parameter_count": (c_int, [c_void_p]),
    "coda_program_parameter": (c_char_p, [c_void_p, c_int, _P(c_double)]),
    "coda_program_operand_shape": (c_int, [c_void_p, c_int, _P(DimsStruct), _P(c_int64), _error]),
    "coda_program_fill": (c_int, [c_void_p, c_int, _P(DimsStruct), ctypes.c_uint64, c_void_p, _error]),
    "coda_program_cost": (c_int, [c_void_p, _P(DimsStruct), _P(CostStruct), _error]),
    "coda_differentiate": (c_int, [c_void_p, c_char_p, c_char_p, _P(c_void_p), _error]),
    "coda_rewrite": (c_int, [c_void_p, _P(RewriteOptionsStruct), _P(c_void_p), _P(c_void_p), _error]),
    "coda_unfuse": (c_int, [c_void_p, _P(c_void_p), _error]),
    "coda_device_open": (c_int, [c_char_p, _P(c_void_p), _error]),
    "coda_device_close": (None, [c_void_p]),
    "coda_device_name": (c_char_p, [c_void_p]),
    "coda_device_description": (c_char_p, [c_void_p]),
    "coda_device_set_threads": (c_int, [c_void_p, c_int, _error]),
    "coda_device_threads": (c_int, [c_void_p]),
    "coda_allocate": (c_int, [c_void_p, c_size_t, _P(c_void_p), _error]),
    "coda_release": (None, [c_void_p, c_void_p]),
    "coda_copy_in": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, _error]),
    "coda_copy_out": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, _error]),
    "coda_synchronize": (c_int, [c_void_p, c_void_p, _error]),
    "coda_kernel_create": (c_int, [c_void_p, c_void_p, _P(DimsStruct), _P(OptionsStruct), _P(c_void_p), _error]),
    "coda_kernel_free": (None, [c_void_p]),
    # operands and parameters travel as packed bytes: see pack_operands in _device.py
    "coda_kernel_launch": (c_int, [c_void_p, c_char_p, c_int, c_char_p, c_void_p, _error]),
    "coda_kernel_source": (c_char_p, [c_void_p]),
    "coda_product_time": (c_double, [c_void_p, c_char_p, c_int]),  # sizes as packed bytes
}


def _candidates():
    chosen = os.environ.get("CODA_LIBRARY")
    if chosen:  # and no other: a user who names a library wants that one
        yield chosen
        return
    here = pathlib.Path(__file__).resolve().parent
    yield str(here / "libcoda.so")
    yield str(here.parent.parent / "build" / "libcoda.so")  # a source tree after `make`
    installed = ctypes.util.find_library("coda")
    if installed:
        yield installed
    yield "libcoda.so.0"


@functools.lru_cache(None)
def load() -> ctypes.CDLL:
    """The library, with every function declared. Raises ImportError that lists where it was sought."""
    tried = []
    for path in _candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            tried.append(f"    {path}: no such file")
            continue
        try:
            library = ctypes.CDLL(path)
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
            if library.coda_version().decode() == VERSION:
                return library
            tried.append(f"    {path}: it is version {library.coda_version().decode()}, this package needs {VERSION}")
        except (OSError, AttributeError) as problem:
            tried.append(f"    {path}: {problem}")
    raise ImportError(
        "coda: the library libcoda.so was not found or does not fit this package. Tried:\n" + "\n".join(tried) +
        "\nInstall the package with `pip install .` in the source tree (it builds the library), run `make` there, or set "
        "CODA_LIBRARY to the library's path.")
