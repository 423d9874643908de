"""The devices of torch tensors, the names of types on both sides, and launches."""

import contextlib
import ctypes
import functools
import struct
import threading

import torch

from .._device import Device
from .._errors import check
from .._library import ErrorStruct, load

TORCH_DTYPE = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
               "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
CODA_DTYPE = {dtype: name for name, dtype in TORCH_DTYPE.items()}

OPERAND = struct.Struct("@iiqqq").pack  # a coda_tensor behind its address: type, rank, shape, distance of rows

_lock = threading.Lock()
_local = threading.local()
_devices: dict = {}
_cpu_name = "cpu"


@contextlib.contextmanager
def cpu_device(name: str):
    """Runs CPU tensors on another device of host memory: "ref" is the interpreter in double (for checks; slow)."""
    global _cpu_name
    before, _cpu_name = _cpu_name, name
    try:
        yield
    finally:
        _cpu_name = before


def cpu_name() -> str:
    """The device that CPU tensors run on."""
    return _cpu_name


def device_key(tensor: torch.Tensor):
    """What distinguishes devices: the GPU's index, or the name of the host's device."""
    if tensor.is_cuda:
        return tensor.get_device()
    if tensor.is_cpu:
        return _cpu_name
    raise RuntimeError(f"coda runs on CPU and CUDA tensors; this one is on {tensor.device}")


def device_of(key) -> Device:
    with _lock:
        if key not in _devices:
            _devices[key] = Device(key if isinstance(key, str) else f"cuda:{key}")
            if key == "cpu":
                _devices[key].threads = min(256, torch.get_num_threads())
        return _devices[key]


def error_address() -> int:
    """The address of this thread's error text."""
    try:
        return _local.address
    except AttributeError:
        _local.error = ErrorStruct()
        _local.address = ctypes.addressof(_local.error)
        return _local.address


def fail(status):
    check(status, _local.error)


@functools.cache
def launch_functions():
    """coda_kernel_launch and its like as fast as ctypes goes: everything is an address or bytes."""
    library = load()
    launch, sets, several = (library[f"coda_kernel_launch{name}"] for name in ("", "_sets", "_list"))
    launch.restype = sets.restype = several.restype = ctypes.c_int
    rest = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
    launch.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, *rest]
    sets.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, *rest]
    several.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, *rest]
    return launch, sets, several
