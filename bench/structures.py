"""The structures of include/coda.h that the bench scripts pass through ctypes."""
import ctypes

MAX_DIMS = 24
F32, BF16, F16, E4M3, E5M2, I32 = range(6)


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 4096)]


class Dim(ctypes.Structure):
    _fields_ = [("axis", ctypes.c_char_p), ("size", ctypes.c_int64)]


class Dims(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("item", Dim * MAX_DIMS)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("tile_rows", ctypes.c_int), ("tile_columns", ctypes.c_int),
                ("schedule", ctypes.c_char_p), ("exact", ctypes.c_int)]


class Operand(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("role", ctypes.c_int), ("dtype", ctypes.c_int), ("rank", ctypes.c_int),
                ("dim", ctypes.c_char * 64 * 2)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int), ("shape", ctypes.c_int64 * 2),
                ("stride", ctypes.c_int64)]
