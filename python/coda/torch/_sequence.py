"""Programs as Python functions on torch tensors: sizes, memory from torch's allocator, launches on torch's stream.

The functions are generated as text, one for a sequence of programs. What follows from the shapes and strides of the arguments
(sizes checked against each other, operands as the library takes them but for their addresses, kernels) is a plan, made once and
remembered; so a call costs little more than its allocations and launches.
"""

import concurrent.futures
import math
import re
import struct
import threading

import torch

from .._device import Kernel
from .._library import DTYPE_SIZE, DTYPES
from ._launch import OPERAND, TORCH_DTYPE, device_of, error_address, fail, launch_functions
from ._order import calls_of, is_faster, is_small, sets_of_products, sizes_of_product

MOST_PLANS = 4096
MOST_COMPILING = 8  # threads; a compiler takes some hundred MiB
_EMPTY = object()
_making = threading.RLock()


def _empty_function(name):
    """What torch's own generated code allocates with: half of the time of `torch.empty`."""
    return getattr(getattr(torch._C, "_dynamo", None) and torch._C._dynamo.guards, name, None)


_empty_cpu = _empty_function("_empty_strided_cpu") or (lambda size, stride, dtype: torch.empty(size, dtype=dtype))
_empty_cuda, _current_device = _empty_function("_empty_strided_cuda"), getattr(torch._C, "_cuda_getDevice", None)


def _empty_on(device):
    """Allocates on a GPU."""
    if _empty_cuda and _current_device and _current_device() == device:
        return _empty_cuda
    return lambda size, stride, dtype: torch.empty(size, dtype=dtype, device=device)


def _dense_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


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


def row_distance(shape, stride):
    """The distance of a matrix's rows in elements, its leading dimensions taken as one; None: kernels need a copy of it."""
    columns, distance, extent = shape[-1], None, 0
    if columns > 1 and stride[-1] != 1:
        return None
    for size, step in zip(reversed(shape[:-1]), reversed(stride[:-1])):
        if size == 1:
            continue
        if distance is None:
            distance = step
        elif step != extent:
            return None
        extent = step * size
    if distance is None:
        return columns
    return distance if distance >= columns else None


class Sequence:
    """Programs that run one after the other, as a function `run(key, *arguments, *parameters)` that returns a tuple.

    arguments   operands in order: their names and dims bind the sizes. An `out` among them is memory that the caller gives
    results     names of what is returned, in order
    rows        an axis whose matrices may have more leading dimensions: [batch, length, K] for [M, K]. Results have those of
                the argument `leading`
    parts       operands that are columns of another one: {"dZ_k": (dZ, "Q")} is the operand dZ from column Q on
    axes        sizes by axes of which no argument's are: {"runs": "(M + 63) // 64"}
    gathered    the programs in another order, which is taken where products that stand together there are faster as one launch
    releases    not None: the arguments come as a list, `run(key, [*arguments], *parameters)`, which is emptied, and each is let go
                after its last use. Names of those that nobody else holds then

    `plan(key, *arguments)` is what their shapes and strides come to; its first item is a function that runs with it,
    `plan[0](plan, *arguments, *parameters)`. `fake` allocates the results alone.
    """

    def __init__(self, name, programs, arguments, results, parameters, rows=None, leading=None, parts=None, axes=None,
                 gathered=None, releases=None):
        self.rows, self.leading, self.releases = rows, leading, releases
        self.parts = {part: (base.name, column) for part, (base, column) in (parts or {}).items()}
        self.bases = {base.name: base for base, _ in (parts or {}).values()}
        self.name, self.programs, self.gathered = name, list(programs), list(gathered or programs)
        self.arguments, self.results, self.parameters = list(arguments), list(results), list(parameters)
        self.axes, self.shapes, self.kernels, self.plans = {}, {o.name: o for o in self.arguments}, [], {}
        for program in self.programs:
            self.axes.update(derived_axes(program.text))
        self.axes.update(axes or {})
        self._scope = {"torch": torch, "prod": math.prod, "error": error_address, "fail": fail,
                       "mismatch": self._mismatch, "layout": self._layout, "operand": OPERAND, "EMPTY": _EMPTY,
                       "again_of": self._again, "plans": self.plans, "remember": self._remember,
                       "stream_of": getattr(torch._C, "_cuda_getCurrentRawStream", None), "empty_cpu": _empty_cpu,
                       "empty_on": _empty_on, "dense": _dense_strides, "compile_kernels": _compile,
                       "handles": lambda *kernels: struct.pack(f"@{len(kernels)}P", *kernels)}
        self._scope["launch"], self._scope["launch_sets"], self._scope["launch_list"] = launch_functions()
        self._scope.update((f"dtype_{name}", dtype) for name, dtype in TORCH_DTYPE.items())
        self._tensors = [_tensor(o.name) for o in self.arguments]
        self._given = self._tensors if releases is None else ["held"]
        self.fake = self._function("fake", ["key", *self._tensors], self._fake())
        self._ways: dict = {}
        self.plan = self._plans()
        self._scope["plan_of"] = self.plan
        self.run = self._function("run", ["key", *self._given], self._run())

    def _plans(self):
        """The function `plan`, whose order of the programs and of memory depends on the sizes where there are plain products."""
        if self.releases is None or not any(map(sizes_of_product, self.programs)):
            return self._way(False, False)
        products = self._function("products", ["key", *self._tensors], self._products())

        def plan(key, *tensors):
            lists, gathered = products(key, *tensors)
            on_gpu = key.__class__ is int
            faster = on_gpu and self.gathered != self.programs and is_faster(device_of(key), lists, gathered)
            return self._way(faster, on_gpu and all(is_small(*sizes) for products in lists for sizes in products))(key, *tensors)
        return plan

    def _way(self, gathered, small):
        """The function `plan` for an order of the programs. small: only matrices over the rows are worth a call's end."""
        with _making:
            if (gathered, small) not in self._ways:
                self._programs, shared, self._scope = self.gathered if gathered else self.programs, self._scope, dict(self._scope)
                body = self._body(small)
                plan = self._function("plan", ["key", *self._tensors], self._plan())
                self._scope["body"] = self._function("body", ["plan", *self._given], body)
                self._ways[gathered, small], self._scope = plan, shared
            return self._ways[gathered, small]

    def _function(self, name, arguments, lines):
        parameters = [] if name in ("plan", "products") else [f"p_{p}" for p in self.parameters]
        source = f"def {name}({', '.join(arguments + parameters)}):\n" + "".join(f"    {line}\n" for line in lines)
        exec(compile(source, f"<coda {self.name}>", "exec"), self._scope)
        return self._scope[name]

    def signature(self) -> str:
        """The text of what a plan depends on."""
        return "".join(f"{t}.shape, {t}.stride(), " for t in self._tensors)

    def _run(self):
        arguments = ", ".join(self._tensors)
        lines = [f"signature = (key, {self.signature()})",
                 f"plan = plans.get(signature) or remember(signature, plan_of(key, {arguments}))"]
        if self.releases is not None:
            lines = [f"{arguments}, = held", *lines, " = ".join([*self._tensors, "None"])]
        return lines + [f"return plan[0](plan, {', '.join(self._given + [f'p_{p}' for p in self.parameters])})"]

    def _remember(self, signature, plan):
        if len(self.plans) >= MOST_PLANS:
            self.plans.clear()
        self.plans[signature] = plan
        return plan

    def _return(self):
        return f"return ({''.join(_tensor(r) + ', ' for r in self.results)})"

    # ---------------------------------------------------------------- sizes

    def _mismatch(self, name, shape, sizes):
        """Which argument does not fit the ones before it."""
        dims = self.shapes[name].dims
        expected = ", ".join(str(sizes.get(d, d)) for d in dims)
        return ValueError(f"{self.name}: `{name}` has shape {list(shape)}; expected {len(dims)} dimensions [{expected}]"
                          f" ([{', '.join(dims)}], sizes taken from the arguments before it)")

    def _sizes(self):
        """Reads every axis from the first argument that has it, and compares the others."""
        lines, known, later = [], {}, []
        for o in self.arguments:
            t, names = _tensor(o.name), [f"s_{o.name}_{i}" for i in range(len(o.dims))]
            if self._is_rows(o):
                lines += [f"if not {t}.dim(): raise mismatch('{o.name}', {t}.shape, {{}})",
                          f"*{'lead' if o.name == self.leading else 'l'}, {names[1]} = {t}.shape",
                          f"{names[0]} = prod({'lead' if o.name == self.leading else 'l'})"]
            else:
                lines.append(f"if {t}.dim() != {len(names)}: raise mismatch('{o.name}', {t}.shape, {{}})")
                if names:
                    lines.append(f"{', '.join(names)}, = {t}.shape")
            for dim, name in zip(o.dims, names):
                if dim.isidentifier() and dim not in known and dim not in self.axes:
                    lines.append(f"n_{dim} = {name}")
                    known[dim] = f"n_{dim}"
                else:
                    later.append((o.name, dim, name))
        for axis, formula in self.axes.items():
            if all(n in known for n in re.findall(r"[A-Za-z_]\w*", formula)):
                lines.append(f"n_{axis} = {_axis(formula)}")
                known[axis] = f"n_{axis}"
        later = [(o, dim, name) for o, dim, name in later
                 if all(n in known for n in re.findall(r"[A-Za-z_]\w*", dim))]
        if later:
            sizes = "{" + ", ".join(f"'{d}': {n}" for d, n in known.items()) + "}"
            lines.append(f"if {' or '.join(f'{name} != {_evaluate(dim)}' for _, dim, name in later)}:")
            for o, dim, name in later:
                lines.append(f"    if {name} != {_evaluate(dim)}: raise mismatch('{o}', {_tensor(o)}.shape, {sizes})")
        return lines, known

    def _products(self):
        """Sizes of the products that stand side by side, in both orders of the programs."""
        lines, _ = self._sizes()
        orders = []
        for programs in (self.programs, self.gathered):
            lists = [[sizes_of_product(programs[i]) for i in places] for places in sets_of_products(programs)]
            texts = [", ".join(f"({', '.join(map(_evaluate, sizes))})" for sizes in products)
                     for products in lists if products[0]]
            orders.append(", ".join(f"[{text}]" for text in texts))
        return lines + [f"return [{orders[0]}], [{orders[1]}]"]

    def _is_rows(self, o):
        return self.rows is not None and len(o.dims) == 2 and o.dims[0] == self.rows

    # ---------------------------------------------------------------- memory

    def _operand(self, name):
        """How a value that is made here is declared."""
        made = (o for p in self.programs for o in p.operands if o.name == name and o.role != "in")
        operand = self.bases.get(name) or next(made, None)
        if operand is None:
            raise KeyError(f"{self.name}: nothing computes {name}")
        return operand

    def _shape(self, name):
        o = self._operand(name)
        dims = [_evaluate(d) for d in o.dims]
        if self._is_rows(o) and name in self.results:
            dims[:1] = ["*lead"]
        return f"({', '.join(dims)},)" if dims else "()"

    def _fake(self):
        """Allocates the results alone."""
        lines, _ = self._sizes()
        lines.append(f"device = {self._tensors[0]}.device")
        for name in self.results:
            lines.append(f"{_tensor(name)} = torch.empty({self._shape(name)}, dtype=dtype_{self._operand(name).dtype}, "
                         "device=device)")
        return lines + [self._return()]

    def _allocate(self, name, function="empty"):
        """Memory of a value's type and shape."""
        dtype = f"dtype_{self._operand(name).dtype}"
        self._planned.setdefault(f"z_{name}", self._shape(name))
        if function == "zeros":
            return f"{_tensor(name)} = {self._tensors[0]}.new_zeros(z_{name}, dtype={dtype})"
        self._planned.setdefault(f"d_{name}", f"dense({self._shape(name)})")
        return f"{_tensor(name)} = empty(z_{name}, d_{name}, {dtype})"

    def _layout(self, name, tensor):
        """Distance of rows, and whether the tensor must be copied first: kernels take any distance of rows but no other."""
        shape, stride = tensor.shape, tensor.stride()
        o = self.shapes[name]
        if 0 in shape:
            return 0, False
        distance = row_distance(shape, stride) if o.dims else 0
        if distance is None and o.role != "in":
            raise ValueError(f"{self.name}: `{name}` is written in place and needs rows of adjacent elements; its strides are "
                             f"{list(stride)}")
        if distance is None:
            return shape[-1], True
        if len(o.dims) == 1:
            return 0, distance != shape[0]
        return distance, False

    @staticmethod
    def _again(copies):
        """Makes dense what must be, None where nothing must."""
        if not any(copies):
            return None
        return lambda *tensors: [t.contiguous() if copy else t for t, copy in zip(tensors, copies)]

    # ---------------------------------------------------------------- launches

    def _body(self, small=False):
        """The launches, and on the way everything that a plan holds: {name in the body: expression in the plan}."""
        self._planned, self._wanted = {}, []
        lines, zeros = [], []
        launches = sets_of_products(self._programs)
        made, last = self._lives(launches)
        keeps = set(self.results) if self.releases is not None else {*self.results, *self.shapes}
        dying = [[n for n, place in last.items() if place == i and n not in keeps] for i in range(len(launches))]
        freed = [sum(n not in self.shapes or n in (self.releases or ()) for n in names) for names in dying]
        large = lambda o: len(o.dims) == 2 and not any("/" in d for d in o.dims) and (self._is_rows(o) or not small)  # noqa: E731
        for places in calls_of([sum(large(self._operand(n)) for n in names) for names in made], freed):
            lines += [self._allocate(name, "zeros" if adds else "empty") for i in places for name, adds in made[i].items()]
            lines += self._launch([launches[i] for i in places])
            lines += [f"{_tensor(name)} = None" for i in places for name in dying[i]]
        for name in self.results:
            self._planned.setdefault(f"z_{name}", self._shape(name))
            zeros.append(f"{self._tensors[0]}.new_zeros(z_{name}, dtype=dtype_{self._operand(name).dtype}), ")
        arguments = ", ".join(self._tensors)
        return [f"_, key, again, {''.join(n + ', ' for n in self._planned)} = plan",
                *([f"{arguments}, = held", "held.clear()"] if self.releases is not None else ()),
                "if again is not None:",
                f"    if again is EMPTY: return ({''.join(zeros)})",
                f"    {arguments}, = again({arguments})",
                "if key.__class__ is int: stream, empty = stream_of(key), empty_on(key)",
                "else: stream, empty = None, empty_cpu",
                "text = error()"] + lines + [self._return()]

    def _plan(self):
        lines, known = self._sizes()
        lines += [f"r_{o.name}, a_{o.name} = layout('{o.name}', {_tensor(o.name)})" for o in self.arguments]
        empty = " or ".join(f"{n} == 0" for n in known.values()) or "False"
        lines += [f"if {empty}:",
                  "    return (body, key, EMPTY, " + "".join((e if n.startswith("z_") else "None") + ", "
                                                      for n, e in self._planned.items()) + ")",
                  f"again = again_of([{', '.join(f'a_{o.name}' for o in self.arguments)}])"]
        lines.append(f"compile_kernels(key, {', '.join(self._wanted)})")
        return lines + [f"return (body, key, again, {''.join(e + ', ' for e in self._planned.values())})"]

    def _operands(self, i, program):
        """Addresses and descriptions of a program's operands; the plan gets what does not change."""
        values = []
        for k, o in enumerate(program.operands):
            dims, stride, place = [_evaluate(d) for d in o.dims], "0", _tensor(o.name)
            if o.name in self.parts:
                base, column = self.parts[o.name]
                if len(dims) == 2:
                    stride = f"r_{base}" if base in self.shapes else _evaluate(self._operand(base).dims[1])
                self._planned[f"o_{i}_{k}"] = f"({_evaluate(column)}) * {DTYPE_SIZE[DTYPES.index(o.dtype)]}"
                place = _tensor(base)
            elif o.name in self.shapes:
                dims = [f"s_{o.name}_{j}" for j in range(len(dims))]
                stride = f"r_{o.name}" if len(dims) == 2 else "0"
            self._planned[f"c_{i}_{k}"] = f"operand({DTYPES.index(o.dtype)}, {len(dims)}, " \
                                          f"{', '.join((dims + ['1', '1'])[:2])}, {stride})"
            values += [f"{place}.data_ptr()" + (f" + o_{i}_{k}" if o.name in self.parts else ""), f"c_{i}_{k}"]
        return values

    def _lives(self, launches):
        """Of each launch the tensors that are made for it, {name: do sums begin there}; of each tensor the last launch that touches
        it."""
        made, last, known = [], {}, set(self.shapes)
        for i, places in enumerate(launches):
            made.append({})
            for o in (o for k in places for o in self._programs[k].operands):
                name = self.parts.get(o.name, (o.name,))[0]
                last[name] = i
                if name not in known:
                    made[i][name] = o.role == "accumulate"
                    known.add(name)
        return made, last

    def _launch(self, launches):
        """One call of the library: a program, the sets of several alike, or several of these. The plan gets the kernels."""
        scope, kernels, values, parameters = self._scope, [], [], []
        first, operands = launches[0][0], sum(len(self._programs[k].operands) for places in launches for k in places)
        for places in launches:
            values += [v for k in places for v in self._operands(k, self._programs[k])]
            kernels.append(self._kernel(places))
            parameters += [f"p_{p}" for p in self._programs[places[0]].parameters]
        scope[f"pack_{first}"] = struct.Struct("@" + "P32s" * operands).pack
        given = f"pack_{first}({', '.join(values)})"
        passed = "None"
        if parameters:
            scope[f"parameters_{first}"] = struct.Struct(f"@{len(parameters)}d").pack
            passed = f"parameters_{first}({', '.join(parameters)})"
        count, sets = len(launches), [len(places) for places in launches]
        self._planned[f"k_{first}"] = kernels[0] if count == 1 else f"handles({', '.join(kernels)})"
        if count > 1:
            scope[f"sets_{first}"] = struct.pack(f"@{count}i", *sets)
            call = f"launch_list(k_{first}, sets_{first}, {count}, {given}, {operands}, "
        elif sets[0] > 1:
            call = f"launch_sets(k_{first}, {given}, {operands // sets[0]}, {sets[0]}, "
        else:
            call = f"launch(k_{first}, {given}, {operands}, "
        return [f"status = {call}{passed}, stream, text)", "if status: fail(status)"]

    def _kernel(self, places):
        """The kernel of a program, or of the sets of several alike, as an expression in the plan."""
        i, made = places[0], _Kernels(self._programs[places[0]], len(places), self.kernels)
        self._scope[f"kernel_{i}"] = made
        sizes = [f"n_{a}" for a in made.fixed]
        self._wanted.append(f"(kernel_{i}, ({''.join(n + ', ' for n in sizes)}))")
        return f"kernel_{i}({', '.join(['key', *sizes])})"


class _Kernels:
    """The kernels of one program, or of the sets of several alike, by device and fixed sizes: compiled, or taken from the disk's
    cache, where they are first asked for."""

    def __init__(self, program, sets, kept):
        self.program, self.sets, self.kept, self.handles = program, sets, kept, {}
        self.fixed = [a for a, kind in program.axes.items() if kind == "fixed"]

    def __call__(self, key, *sizes):
        handle = self.handles.get((key, sizes))
        if handle is None:
            kernel = Kernel(device_of(key), self.program, dict(zip(self.fixed, sizes)), (0, 0), None, False, self.sets)
            self.kept.append(kernel)
            handle = self.handles[key, sizes] = kernel.handle
        return handle


def _compile(key, *wanted):
    """The kernels (kernels, sizes) of a plan that a GPU has not yet, side by side: each takes a good part of a second."""
    missing = [(kernels, sizes) for kernels, sizes in wanted if (key, sizes) not in kernels.handles]
    if len(missing) > 1 and key.__class__ is int:
        with concurrent.futures.ThreadPoolExecutor(min(len(missing), MOST_COMPILING)) as threads:
            list(threads.map(lambda one: one[0](key, *one[1]), missing))
