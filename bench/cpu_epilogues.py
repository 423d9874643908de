#!/usr/bin/env python3
"""What an epilogue costs on the CPU device: the time of each standard program over that of its bare products, in turns.

    python3 bench/cpu_epilogues.py [--sizes 2048x1024x1024,2048x1024x2048] [--threads 2] [--libraries a.so,b.so] [--json]

The bare product is gemm_dgrad of the same size (twice its time for two products). Sizes are MxNxK. Lower quartiles of
--rounds runs are compared. Several libraries are timed in turns in one process, so that a change is seen beside the state
before it. Operands are normal bf16. Needs numpy.
"""
import argparse, ctypes, json, mmap, os, sys, time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--sizes", default="2048x1024x1024,2048x1024x2048")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=21)
parser.add_argument("--programs", default="gemm_residual_rms,gemm_rms_swiglu,gemm_rms_rope,gemm_rms_bwd,gemm_rms_lse,gemm_swiglu_bwd")
parser.add_argument("--libraries", default=os.path.join(os.path.dirname(__file__), "..", "build", "libcoda.so"))
parser.add_argument("--tiles", default="0x0", help="rows x columns of a tile, several separated by commas (0: the device's choice)")
parser.add_argument("--cpu-time", action="store_true", help="of the process instead of the clock's: one thread on a busy machine")
parser.add_argument("--json", action="store_true", help="one object a row")
args = parser.parse_args()
os.environ["CODA_THREADS"] = str(args.threads)

import numpy
from structures import BF16, F32, I32, Dim, Dims, Error, Options, Tensor

SIZE = {F32: numpy.float32, BF16: numpy.uint16, I32: numpy.int32}


class Library:
    def __init__(self, path):
        self.path, self.lib, self.device, self.module = path, ctypes.CDLL(path), ctypes.c_void_p(), ctypes.c_void_p()
        self.lib.coda_module_find.restype = ctypes.c_void_p
        self.lib.coda_device_description.restype = ctypes.c_char_p
        self.call("coda_device_open", b"cpu", ctypes.byref(self.device))
        self.call("coda_standard_module", ctypes.byref(self.module))

    def call(self, function, *arguments):
        error = Error()
        if getattr(self.lib, function)(*arguments, ctypes.byref(error)):
            raise RuntimeError(f"{function}: {error.message.decode()}")

    def prepare(self, program, operands, fixed, tile):
        dims, kernel = Dims(len(fixed)), ctypes.c_void_p()
        options = Options(ctypes.sizeof(Options), *map(int, tile.split("x")), None, 0)
        for i, (axis, size) in enumerate(fixed.items()):
            dims.item[i] = Dim(axis.encode(), size)
        found = ctypes.c_void_p(self.lib.coda_module_find(self.module, program.encode()))
        self.call("coda_kernel_create", self.device, found, ctypes.byref(dims), ctypes.byref(options),
                  ctypes.byref(kernel))
        tensors = (Tensor * len(operands))()
        for i, (code, array) in enumerate(operands):
            shape = (ctypes.c_int64 * 2)(*array.shape)
            tensors[i] = Tensor(array.ctypes.data, code, array.ndim, shape, 0)
        return lambda keep=operands: self.call("coda_kernel_launch", kernel, tensors, len(tensors), None, None)


random = numpy.random.default_rng(1)


def memory(code, *shape):
    """On large pages, as the library's own buffers are."""
    page, size = 1 << 21, int(numpy.prod(shape)) * numpy.dtype(SIZE[code]).itemsize
    pages = mmap.mmap(-1, size + 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(pages)) % page
    return numpy.frombuffer(pages, numpy.uint8, size, start).view(SIZE[code]).reshape(shape)


def make(code, *shape, scale=1.0):
    x = random.standard_normal(shape, numpy.float32) * numpy.float32(scale)
    found = memory(code, *shape)
    found[:] = (x.view(numpy.uint32) >> 16).astype(numpy.uint16) if code == BF16 else x
    return code, found


def out(code, *shape):
    found = memory(code, *shape)
    found[:] = 0
    return code, found


def ids(count, limit):
    return I32, (numpy.arange(count) * 7919 % limit).astype(numpy.int32)


def operands_of(program, m, n, k):
    """Operands in order, sizes of axes that nothing else tells, and the number of products."""
    a, w, s = make(BF16, m, k), lambda *shape: make(BF16, *shape, scale=k**-0.5), make(F32, m, k // 128)
    s[1][:] = numpy.abs(s[1]) * 16 + 120
    b, f = lambda: out(BF16, m, n), lambda *shape: out(F32, *shape)
    e = n // 6 // 64 * 64
    q = n - 2 * e
    return {
        "gemm_dgrad": lambda: ([a, w(k, n), b()], {}, 1),
        "gemm": lambda: ([a, w(n, k), b()], {}, 1),
        "gemm_wgrad": lambda: ([make(BF16, k, m), w(k, n), f(m, n)], {}, 1),
        "gemm_residual_rms": lambda: ([a, w(n, k), make(BF16, m, n), make(BF16, n), b(), f(m, n // 128), b()], {}, 1),
        "gemm_rms_swiglu": lambda: ([a, w(n, k), w(n, k), s, b(), b(), f(m), b()], {}, 2),
        "gemm_rms_rope": lambda: ([a, w(q, k), w(e, k), w(e, k), s, make(F32, 512, 64), ids(m, 512), b(), f(m)], {"D": 64}, 1),
        "gemm_rms_lse": lambda: ([a, w(n, k), s, ids(m, n), b(), f(m, n // 128), f(m), f(m, n // 128), f(m)], {"V": n}, 1),
        "gemm_swiglu_bwd": lambda: ([a, w(k, n), make(BF16, m, n), make(BF16, m, n), b(), b(), f(m, n // 128), b()], {}, 1),
        "gemm_rms_bwd": lambda: ([a, w(k, n), make(BF16, m, n), make(BF16, n), make(F32, m), make(F32, m, k // 128),
                                  make(BF16, m, n), b(), b(), f(m // 64, n)], {}, 1),
    }[program]()


now = time.process_time if args.cpu_time else time.perf_counter


def quartile(times):
    return sorted(times)[0 if args.cpu_time else len(times) // 4]


libraries = [Library(path) for path in args.libraries.split(",")]
variants = [(library, tile) for library in libraries for tile in args.tiles.split(",")]
if not args.json:
    print(libraries[0].lib.coda_device_description(libraries[0].device).decode().split("\n")[0], f"{args.threads} threads")
for text in args.sizes.split(","):
    m, n, k = map(int, text.split("x"))
    runs, products = {}, {}
    for program in ["gemm_dgrad"] + args.programs.split(","):
        operands, fixed, products[program] = operands_of(program, m, n, k)
        for i, (library, tile) in enumerate(variants):
            try:
                runs[program, i] = library.prepare(program, operands, fixed, tile)
            except RuntimeError as refusal:
                print(f"{program}, {tile}: {refusal}", file=sys.stderr)
    times = {key: [] for key in runs}
    awake = time.perf_counter() + 0.2
    while time.perf_counter() < awake:
        runs["gemm_dgrad", 0]()
    for i in range(args.rounds):
        order = list(runs)
        for key in order[i % len(order):] + order[:i % len(order)]:
            runs[key]()
            start = now()
            runs[key]()
            times[key].append((now() - start) * 1e3)
    for program in products:
        for i, (library, tile) in enumerate(variants):
            if (program, i) not in runs:
                continue
            ms, bare = quartile(times[program, i]), quartile(times["gemm_dgrad", i]) * products[program]
            row = dict(program=program, size=text, library=library.path, tile=tile, ms=round(ms, 3), bare_ms=round(bare, 3),
                       ratio_to_bare=round(ms / bare, 3), gflops=round(2e-6 * m * n * k * products[program] / ms, 1))
            print(json.dumps(row) if args.json else
                  f"{text:16} {program:18} {library.path.split('/')[-1]:16} {tile:8} {ms:8.3f} ms  {ms / bare:6.3f} of bare", flush=True)
