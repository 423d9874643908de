"""Devices, kernels, and arrays as the library sees them."""

import ctypes
import math
import struct
import threading
import weakref

from ._errors import check
from ._library import DTYPE_SIZE, DTYPES, ErrorStruct, OptionsStruct, c_void_p, load
from ._program import Program, dims_struct, dtype_code

_TYPESTR = {"f4": 0, "f2": 2, "i4": 5}  # array-interface type codes without the byte order
_PACK = struct.Struct("@Piiqqq")  # coda_tensor
_local = threading.local()


def error_of_thread() -> ErrorStruct:
    """One error text a thread: they are 4 KB, and a launch that succeeds does not touch it."""
    try:
        return _local.error
    except AttributeError:
        _local.error = ErrorStruct()
        return _local.error


class Tensor:
    """Memory with a type and a shape, as a kernel takes it: a view of an array, or memory of a device.

    Arrays offer `__cuda_array_interface__`, `__array_interface__` or the buffer protocol. Types that these cannot name (bf16,
    fp8) are given by `dtype`, over an array of elements of that size.
    """

    def __init__(self, array, dtype: str | None = None):
        self._keep = array
        pointer, shape, strides, code, itemsize = _describe(array)
        if dtype is not None:
            code = dtype_code(dtype)
            if DTYPE_SIZE[code] != itemsize:
                raise ValueError(f"elements of {itemsize} bytes cannot be {dtype}, which has {DTYPE_SIZE[code]}")
        if code is None:
            raise TypeError("coda takes f32, f16 and i32 arrays; name the type of others: coda.Tensor(array, 'bf16')")
        if len(shape) > 2:
            raise ValueError(f"an array of {len(shape)} dimensions; kernels take 0, 1 or 2: reshape it to rows and columns")
        if shape and shape[-1] > 1 and strides[-1] != itemsize:
            raise ValueError("the elements of a row are not adjacent; make the array contiguous")
        if len(shape) == 2 and strides[0] % itemsize:
            raise ValueError("the rows' distance is no multiple of the element's size")
        self.pointer, self.shape, self.dtype = pointer, tuple(shape), DTYPES[code]
        self.stride = strides[0] // itemsize if len(shape) == 2 and shape[0] > 1 else 0
        self._code = code

    def packed(self) -> bytes:
        """This tensor as a coda_tensor."""
        rank = len(self.shape)
        rows, columns = (self.shape + (1, 1))[:2]
        return _PACK.pack(self.pointer, self._code, rank, rows, columns, self.stride)


class _DeviceMemory:
    """Memory of a device, released with the object."""

    def __init__(self, device, shape, code):
        self.device, self.shape, self.code = device, shape, code
        self.bytes = max(1, math.prod(shape)) * DTYPE_SIZE[code]
        pointer, error = c_void_p(), error_of_thread()
        check(load().coda_allocate(device.handle, self.bytes, ctypes.byref(pointer), ctypes.byref(error)), error)
        self.pointer = pointer.value
        weakref.finalize(self, load().coda_release, device.handle, self.pointer).atexit = False  # the process frees it


def _describe(array):
    """Pointer, shape, strides in bytes, type code or None, bytes of an element."""
    if isinstance(array, Tensor):
        size = DTYPE_SIZE[array._code]
        row = (array.stride or array.shape[-1]) * size if array.shape else size
        return array.pointer, array.shape, ((row, size) if len(array.shape) == 2 else (size,) * len(array.shape)), \
            array._code, size
    if isinstance(array, _DeviceMemory):
        return array.pointer, array.shape, _dense(array.shape, DTYPE_SIZE[array.code]), array.code, DTYPE_SIZE[array.code]
    interface = getattr(array, "__cuda_array_interface__", None) or getattr(array, "__array_interface__", None)
    if interface is not None:
        typestr, shape = interface["typestr"], interface["shape"]
        itemsize = int(typestr[2:])
        code = None if typestr[0] == ">" else _TYPESTR.get(typestr[1:])
        return interface["data"][0], shape, interface.get("strides") or _dense(shape, itemsize), code, itemsize
    try:
        view = memoryview(array)
    except TypeError:
        raise TypeError(f"{type(array).__name__} is no array: it offers neither __array_interface__, "
                        "__cuda_array_interface__ nor the buffer protocol") from None
    code = {"f": 0, "e": 2, "i": 5}.get(view.format)
    if view.readonly:
        raise TypeError("a read-only buffer; kernels take writable memory (bytearray, array.array, numpy)")
    return ctypes.addressof(ctypes.c_char.from_buffer(view)), view.shape, view.strides, code, view.itemsize


def _dense(shape, itemsize):
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class Device:
    """Where kernels run: "cpu", "cuda", "cuda:1", or "ref" (an interpreter in double: slow, the oracle)."""

    def __init__(self, name: str = "cpu"):
        handle, error = c_void_p(), error_of_thread()
        check(load().coda_device_open(name.encode(), ctypes.byref(handle), ctypes.byref(error)), error)
        self.handle = handle.value
        # Never closed: kernels and memory of it may live as long as the process.

    @property
    def name(self) -> str:
        return load().coda_device_name(self.handle).decode()

    @property
    def description(self) -> str:
        """One line a fact: instruction set, threads, libraries found and not found."""
        return load().coda_device_description(self.handle).decode()

    @property
    def threads(self) -> int:
        """Threads of a CPU device. Results do not depend on it."""
        return load().coda_device_threads(self.handle)

    @threads.setter
    def threads(self, count: int):
        error = error_of_thread()
        check(load().coda_device_set_threads(self.handle, count, ctypes.byref(error)), error)

    def kernel(self, program: Program, dims=None, *, tile=(0, 0), schedule=None, exact=False) -> "Kernel":
        """Compiles a program. `dims` gives sizes of axes: those that the program marks as fixed, others as a hint."""
        return Kernel(self, program, dims or {}, tile, schedule, exact)

    def empty(self, shape, dtype="f32") -> Tensor:
        """Memory of the device, contents undefined."""
        return Tensor(_DeviceMemory(self, tuple(shape), dtype_code(dtype)))

    def tensor(self, array, dtype=None) -> Tensor:
        """A dense copy of a host array in the device's memory."""
        host = Tensor(array, dtype)
        if host.stride not in (0, host.shape[-1] if host.shape else 0):
            raise ValueError("the array's rows are not adjacent; make it contiguous")
        made, error = self.empty(host.shape, host.dtype), error_of_thread()
        check(load().coda_copy_in(self.handle, made.pointer, host.pointer, _bytes(host), ctypes.byref(error)), error)
        return made

    def read(self, tensor: Tensor, into) -> None:
        """Copies a dense tensor of the device into a host array of the same size; waits for the device first."""
        host, error = Tensor(into, tensor.dtype), error_of_thread()
        if _bytes(host) != _bytes(tensor):
            raise ValueError(f"an array of {_bytes(host)} bytes for a tensor of {_bytes(tensor)}")
        check(load().coda_copy_out(self.handle, host.pointer, tensor.pointer, _bytes(tensor), ctypes.byref(error)), error)

    def synchronize(self, stream=None) -> None:
        """Waits for everything launched on a stream (None: the default stream)."""
        error = error_of_thread()
        check(load().coda_synchronize(self.handle, stream, ctypes.byref(error)), error)

    def __repr__(self):
        return f"<coda.Device {self.name}>"


def _bytes(tensor):
    return math.prod(tensor.shape) * DTYPE_SIZE[tensor._code]


class Kernel:
    """A program compiled for a device. Call it with the operands by name (or in order) and the params by name."""

    def __init__(self, device, program, dims, tile, schedule, exact, sets=0):
        handle, error, sizes = c_void_p(), error_of_thread(), dims_struct(dims)
        options = OptionsStruct(ctypes.sizeof(OptionsStruct), tile[0], tile[1],
                                None if schedule is None else schedule.encode(), exact, sets)
        check(load().coda_kernel_create(device.handle, program.handle, ctypes.byref(sizes), ctypes.byref(options),
                                        ctypes.byref(handle), ctypes.byref(error)), error)
        self.device, self.program, self.handle = device, program, handle.value
        weakref.finalize(self, load().coda_kernel_free, self.handle).atexit = False  # the process frees it
        self._names = [o.name for o in program.operands]
        self._defaults = program.parameters

    @property
    def source(self) -> str:
        """What was generated: CUDA C, or a listing of the CPU's steps."""
        return load().coda_kernel_source(self.handle).decode()

    def __call__(self, *operands, stream=None, **named) -> None:
        """Launches. On a GPU it returns at once; on a CPU when the work is done."""
        parameters = {**self._defaults, **{k: named.pop(k) for k in list(named) if k in self._defaults}}
        given = dict(zip(self._names, operands), **named)
        if len(operands) > len(self._names) or set(given) != set(self._names):
            raise TypeError(f"{self.program.name} takes {', '.join(self._names)}"
                            f"{' and ' + ', '.join(self._defaults) if self._defaults else ''}; got {', '.join(given)}")
        tensors = [t if isinstance(t, Tensor) else Tensor(t) for t in (given[n] for n in self._names)]
        packed = b"".join(t.packed() for t in tensors)
        values = struct.pack(f"@{len(parameters)}d", *parameters.values()) if parameters else None
        error = error_of_thread()
        check(load().coda_kernel_launch(self.handle, packed, len(tensors), values, stream, ctypes.byref(error)), error)

    def __repr__(self):
        return f"<coda.Kernel {self.program.name} on {self.device.name}>"
