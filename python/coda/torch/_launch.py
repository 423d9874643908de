"""Programs as Python functions on torch tensors: sizes, memory from torch's allocator, launches on torch's stream.

The functions are generated as text, one for a sequence of programs, so that a call costs little more than its launches: sizes
are read once, operands are packed by one `struct` call, and memory is dropped after its last use.
"""

import contextlib
import math
import re
import struct
import threading

import torch

from .._device import Device, Kernel, error_of_thread
from .._errors import check
from .._library import DTYPES, load

TORCH_DTYPE = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
               "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
CODA_DTYPE = {dtype: name for name, dtype in TORCH_DTYPE.items()}

_lock = threading.Lock()
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


def device_key(tensor: torch.Tensor):
    """What distinguishes devices: the GPU's index, or the name of the host's device."""
    device = tensor.device
    if device.type == "cuda":
        return device.index
    if device.type == "cpu":
        return _cpu_name
    raise RuntimeError(f"coda runs on CPU and CUDA tensors; this one is on {device}")


def device_of(key) -> Device:
    with _lock:
        if key not in _devices:
            _devices[key] = Device(key if isinstance(key, str) else f"cuda:{key}")
            if key == "cpu":
                _devices[key].threads = min(256, torch.get_num_threads())
        return _devices[key]


# In generated text the names of the program carry a prefix, so that none of them is a keyword or a helper's name.
def _tensor(name):
    return f"t_{name}"


def _axis(formula: str) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda m: f"n_{m.group()}", formula)


def _evaluate(dim: str) -> str:
    """A declared size as a Python expression: "N/128" is a ceiling."""
    match = re.fullmatch(r"(\w+)/(\w+)(?:/(\d+))?", dim)
    if not match:
        return _axis(dim)
    size, run, part = match.groups()
    run = f"({_axis(run)} // {part})" if part else _axis(run)
    return f"(({_axis(size)} + {run} - 1) // {run})"


def derived_axes(text: str) -> dict:
    """`axis N = Q + 2*E` as {"N": "Q + 2*E"}, in the order of the text."""
    return {name: formula.strip() for name, formula in re.findall(r"^\s*axis (\w+) = (.*)$", text, re.M)}


class Sequence:
    """Programs that run one after the other, as a function `run(key, *arguments, *parameters)` that returns a tuple.

    arguments   operands in order: their names and dims bind the sizes. An `out` among them is memory that the caller gives
    results     names of what is returned, in order
    rows        an axis whose matrices may have more leading dimensions: [batch, length, K] for [M, K]. Results have those of
                the argument `leading`
    """

    def __init__(self, name, programs, arguments, results, parameters, rows=None, leading=None):
        self.rows, self.leading = rows, leading
        self.name, self.programs = name, list(programs)
        self.arguments, self.results, self.parameters = list(arguments), list(results), list(parameters)
        self.axes, self.shapes, self.kernels = {}, {o.name: o for o in self.arguments}, []
        for program in self.programs:
            self.axes.update(derived_axes(program.text))
        self.run = self._compile(launching=True)
        self.fake = self._compile(launching=False)

    def _compile(self, launching):
        self._lines, self._scope = [], {
            "torch": torch, "prod": math.prod, "empty": torch.empty, "error": error_of_thread, "launch": load().coda_kernel_launch,
            "check": check, "mismatch": self._mismatch,
            "stream_of": getattr(torch._C, "_cuda_getCurrentRawStream", None)}
        self._bind_sizes(launching)
        if launching:
            self._launches()
        else:
            for name in self.results:
                self._allocate(name)
        self._return()
        head = ["key"] + [_tensor(o.name) for o in self.arguments] + [f"p_{p}" for p in self.parameters]
        source = f"def run({', '.join(head)}):\n" + "".join(f"    {line}\n" for line in self._lines)
        exec(compile(source, f"<coda {self.name}>", "exec"), self._scope)
        return self._scope["run"]

    def _return(self, indent=""):
        self._lines.append(f"{indent}return ({''.join(_tensor(r) + ', ' for r in self.results)})")

    # ---------------------------------------------------------------- sizes

    def _mismatch(self, name, shape, sizes):
        """Which argument does not fit the ones before it."""
        dims = self.shapes[name].dims
        expected = ", ".join(str(sizes.get(d, d)) for d in dims)
        return ValueError(f"{self.name}: `{name}` has shape {list(shape)}; expected {len(dims)} dimensions [{expected}]"
                          f" ([{', '.join(dims)}], sizes taken from the arguments before it)")

    def _bind_sizes(self, launching):
        """Reads every axis from the first argument that has it, and compares the others."""
        known, later = {}, []
        self._lines.append(f"device = {_tensor(self.arguments[0].name)}.device")
        for o in self.arguments:
            t, names = _tensor(o.name), [f"s_{o.name}_{i}" for i in range(len(o.dims))]
            if self._is_rows(o):
                self._lines += [f"if not {t}.dim(): raise mismatch('{o.name}', {t}.shape, {{}})",
                                f"*{'lead' if o.name == self.leading else 'l'}, {names[1]} = {t}.shape",
                                f"{names[0]} = prod({'lead' if o.name == self.leading else 'l'})"]
            else:
                self._lines.append(f"if {t}.dim() != {len(names)}: raise mismatch('{o.name}', {t}.shape, {{}})")
                if names:
                    self._lines.append(f"{', '.join(names)}, = {t}.shape")
            for dim, name in zip(o.dims, names):
                if dim.isidentifier() and dim not in known and dim not in self.axes:
                    self._lines.append(f"n_{dim} = {name}")
                    known[dim] = f"n_{dim}"
                else:
                    later.append((o.name, dim, name))
        for axis, formula in self.axes.items():
            if all(n in known for n in re.findall(r"[A-Za-z_]\w*", formula)):
                self._lines.append(f"n_{axis} = {_axis(formula)}")
                known[axis] = f"n_{axis}"
        later = [(o, dim, name) for o, dim, name in later
                 if all(n in known for n in re.findall(r"[A-Za-z_]\w*", dim))]
        if later:
            sizes = "{" + ", ".join(f"'{d}': {n}" for d, n in known.items()) + "}"
            self._lines.append(f"if {' or '.join(f'{name} != {_evaluate(dim)}' for _, dim, name in later)}:")
            for o, dim, name in later:
                self._lines.append(f"    if {name} != {_evaluate(dim)}: "
                                   f"raise mismatch('{o}', {_tensor(o)}.shape, {sizes})")
        if launching and known:
            self._lines.append(f"if {' == 0 or '.join(known.values())} == 0:")
            for name in self.results:
                self._allocate(name, "    ", "torch.zeros")
            self._return("    ")

    # ---------------------------------------------------------------- memory

    def _is_rows(self, o):
        return self.rows is not None and len(o.dims) == 2 and o.dims[0] == self.rows

    def _allocate(self, name, indent="", function="empty"):
        operand = next((o for p in self.programs for o in p.operands if o.name == name and o.role != "in"), None)
        if operand is None:
            raise KeyError(f"{self.name}: nothing computes {name}")
        self._scope[f"dtype_{operand.dtype}"] = TORCH_DTYPE[operand.dtype]
        shape = ", ".join(_evaluate(d) for d in operand.dims)
        if self._is_rows(operand) and name in self.results:
            shape = f"*lead, {_evaluate(operand.dims[1])}"
        self._lines.append(f"{indent}{_tensor(name)} = {function}(({shape},), "
                           f"dtype=dtype_{operand.dtype}, device=device)")

    def _make_dense(self, o):
        """Kernels take any distance of rows but no other: transposed and expanded tensors are copied."""
        n = _tensor(o.name)
        if len(o.dims) == 2:
            columns, row = f"s_{o.name}_1", f"r_{o.name}"
            self._lines += [f"if {n}.is_contiguous(): {row} = {columns}",
                            "else:"]
            if self._is_rows(o):
                self._lines.append(f"    if {n}.dim() != 2: {n} = {n}.reshape(-1, {columns})")
            self._lines += [f"    {row}, e = {n}.stride()",
                            f"    if e != 1 or {row} < {columns}: {n} = {n}.contiguous(); {row} = {columns}"]
        elif len(o.dims) == 1:
            self._lines.append(f"if {n}.stride(0) != 1: {n} = {n}.contiguous()")

    # ---------------------------------------------------------------- launches

    def _launches(self):
        self._lines += ["stream = stream_of(key) if type(key) is int else None", "text = error()"]
        last = {o.name: i for i, p in enumerate(self.programs) for o in p.operands}
        given, dense = {o.name for o in self.arguments}, set()
        made = {o.name for o in self.arguments if o.role != "in"}
        for name in made:
            self._lines.append(f"r_{name} = {_tensor(name)}.stride(0)")
        for i, program in enumerate(self.programs):
            for o in program.operands:
                if o.role == "in" and o.name in given and o.name not in dense:
                    self._make_dense(o)
                    dense.add(o.name)
                elif o.role != "in" and o.name not in made:
                    self._allocate(o.name, function="torch.zeros" if o.role == "accumulate" else "empty")
                    made.add(o.name)
            self._launch(i, program, given)
            for o in program.operands:
                if last[o.name] == i and o.name not in self.results:
                    self._lines.append(f"{_tensor(o.name)} = None")

    def _launch(self, i, program, given):
        values = []
        for o in program.operands:
            dims = [f"s_{o.name}_{k}" if o.name in given else _evaluate(d) for k, d in enumerate(o.dims)]
            stride = f"r_{o.name}" if len(dims) == 2 and o.name in given else "0"
            values += [f"{_tensor(o.name)}.data_ptr()", str(DTYPES.index(o.dtype)), str(len(dims)),
                       *(dims + ["1", "1"])[:2], stride]
        fixed = [a for a, kind in program.axes.items() if kind == "fixed"]
        scope, parameters, sizes = self._scope, "None", "".join(f", n_{a}" for a in fixed)
        scope[f"kernels_{i}"] = kernels = {}
        scope[f"pack_{i}"] = struct.Struct("@" + "Piiqqq" * len(program.operands)).pack
        scope[f"create_{i}"] = lambda key, *sizes: self._create(program, fixed, kernels, key, sizes)
        if program.parameters:
            scope[f"parameters_{i}"] = struct.Struct(f"@{len(program.parameters)}d").pack
            parameters = f"parameters_{i}({', '.join(f'p_{p}' for p in program.parameters)})"
        self._lines += [
            f"kernel = kernels_{i}.get({f'(key{sizes})' if fixed else 'key'}) or create_{i}(key{sizes})",
            f"status = launch(kernel, pack_{i}({', '.join(values)}), {len(program.operands)}, {parameters}, stream, text)",
            "if status: check(status, text)",
        ]

    def _create(self, program, fixed, kernels, key, sizes):
        """Compiles a program for a device, or takes it from the disk's cache; remembered by device and fixed sizes."""
        kernel = Kernel(device_of(key), program, dict(zip(fixed, sizes)), (0, 0), None, False)
        self.kernels.append(kernel)
        kernels[(key, *sizes) if fixed else key] = kernel.handle
        return kernel.handle
