"""What the compiler makes of an operator's block: the programs that run without gradients, those that keep what a backward reads,
and the backward, as functions."""

import dataclasses
import operator
import re
import sys
import threading

import torch

from .._errors import UnsupportedError
from .._program import Module, Operand
from ._columns import columns_apart
from ._launch import TORCH_DTYPE, device_key
from ._order import overwritten, product_form, products_gathered
from ._sequence import Sequence, derived_axes
from ._sums import sums_of_runs

LOCK = threading.RLock()  # of everything that is made when it is first asked for


def _has_one_owner(tensors, place):
    """Does nobody but this list hold the tensor and its memory? Hooks on saved tensors may have kept it, or who looked at them."""
    tensor = tensors[place]
    return sys.getrefcount(tensor) <= 3 and tensor._use_count() == 1 and \
        torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2


def _picker(places):
    """A function that takes these places of a tuple."""
    if len(places) == 1:
        return lambda values: (values[places[0]],)
    return operator.itemgetter(*places) if places else lambda values: ()


class Derived:
    """What the compiler makes of an operator's block."""

    def __init__(self, operator):
        self.name, self.inputs, self.outputs = operator.name, operator.inputs, operator.outputs
        block = operator.block
        self.plain, _ = block.rewrite(allow_passes=True)
        self.why_not, self.kept, self.backward, self.saved, self.extra, self.together = None, self.plain, None, [], [], {}
        try:
            kept, _ = block.rewrite(backward=True, allow_passes=True, save=operator.save)
        except UnsupportedError as problem:
            self.why_not = str(problem)
            return
        prefix = f"{block.name}_bwd_"
        self.kept = Module.parse("".join(p.text for p in kept if not p.name.startswith(prefix)))
        self.backward = self._gradients_in_the_type_of_the_weight([p for p in kept if p.name.startswith(prefix)])
        made = {o.name for p in self.backward for o in p.operands if o.role != "in"}
        arriving = {f"d{o.name}" for o in self.outputs}
        read = dict.fromkeys(o.name for p in self.backward for o in p.operands if o.role == "in")
        self.saved = [n for n in read if n not in made and n not in arriving]
        given = {o.name for o in self.inputs + self.outputs}
        self.extra = [n for n in self.saved if n not in given]
        self.together = self._in_one_memory(operator.rows)
        self.extra = list(dict.fromkeys(self.held_by(n) for n in self.extra))

    def _in_one_memory(self, rows):
        """Kept matrices of one type and shape, side by side in one tensor, which costs a call less than two:
        {"G": (tensor, its first column)}."""
        kept = {o.name: o for p in self.kept for o in p.operands if o.role == "out" and o.name in self.extra}
        alike, parts = {}, {}
        in_epilogues = {o.name for p in self.backward if not product_form(p) for o in p.operands}
        for o in (o for o in kept.values() if o.name in in_epilogues):  # others are free after their product
            if len(o.dims) == 2 and o.dims[0] == rows and o.dims[1].isidentifier():
                alike.setdefault((o.dtype, o.dims), []).append(o.name)
        for (dtype, (_, width)), names in alike.items():
            held = Operand("_".join(names), "out", dtype, (rows, f"{len(names)}*{width}"))
            parts.update({name: (held, f"{i}*{width}") for i, name in enumerate(names) if len(names) > 1})
        return parts

    def held_by(self, name):
        """The tensor that holds a kept value."""
        return self.together[name][0].name if name in self.together else name

    def _gradients_in_the_type_of_the_weight(self, programs):
        """Weight gradients come as `f32 +=`; a fresh gradient of autograd is stored once, in the weight's type."""
        types = {f"d{o.name}": o.dtype for o in self.inputs}

        def store(match):
            name, dims = match.groups()
            dtype = types.get(name) or next((o.dtype for o in self.inputs if name.startswith(f"d{o.name}_")), "f32")
            return f"out {name} : {dtype}[{dims}] = "
        text = "".join(re.sub(r"out (\w+) : f32\[([^\]]*)\] \+= ", store, p.text) for p in programs)
        return Module.parse(text, f"{self.name} backward")

    def parts(self, name):
        """A stack of weights has one gradient, rows end to end: the inputs that `dWq_Wk_Wv` belongs to."""
        names = [o.name for o in self.inputs]

        def split(rest):
            if rest in names:
                return [rest]
            for first in names:
                if rest.startswith(first + "_"):
                    tail = split(rest[len(first) + 1:])
                    if tail:
                        return [first] + tail
            return []
        return split(name[1:]) if name.startswith("d") else []


class Variant:
    """An operator in one type."""

    def __init__(self, operator, dtype: str):
        self.operator, self.dtype = operator, dtype
        derived = operator.derived
        retype = lambda module: module if dtype == "bf16" else module.retype("bf16", dtype)  # noqa: E731
        block = retype(operator.module)[0]
        self.inputs = [o for o in block.operands if o.role == "in"]
        outputs = [o.name for o in operator.outputs]
        shape = {"rows": operator.rows, "leading": self.inputs[0].name}
        self.plain = Sequence(operator.title, retype(derived.plain), self.inputs, outputs, operator.parameters, **shape)
        typed = lambda o: dataclasses.replace(o, dtype=dtype) if o.dtype == "bf16" else o  # noqa: E731
        self.together = {name: (typed(held), column) for name, (held, column) in derived.together.items()}
        self.keep = Sequence(operator.title, retype(derived.kept), self.inputs, outputs + derived.extra,
                             operator.parameters, parts=self.together, **shape)
        self._retype, self._backwards = retype, {}

    def backward(self, wanted: int) -> "Backward":
        made = self._backwards.get(wanted)
        if made is None:
            with LOCK:
                made = Backward(self, wanted, self._retype(self.operator.derived.backward))
                made = self._backwards.setdefault(wanted, made)
        return made


class Backward:
    """The backward of a variant for the inputs in the bit set `wanted`: programs that nothing asks for do not run."""

    def __init__(self, variant: Variant, wanted: int, module: Module):
        operator = self.operator = variant.operator
        self.wanted = [o for i, o in enumerate(variant.inputs) if wanted >> i & 1]
        self._sources = [self._source(o, module) for o in self.wanted]
        needed = {name for name, *_ in self._sources}
        results = [o.name for p in module for o in p.operands if o.role != "in" and o.name in needed]
        programs = []
        for program in reversed(list(module)):
            if any(o.name in needed for o in program.operands if o.role != "in"):
                programs.insert(0, program)
                needed |= {o.name for o in program.operands if o.role == "in"}
        read = {o.name: o for p in programs for o in p.operands if o.role == "in"}
        outputs = [f"d{o.name}" for o in operator.outputs]
        together = {name: part for name, part in variant.together.items() if name in read}
        read.update((held.name, held) for held, _ in together.values())
        saved = list(dict.fromkeys(operator.derived.held_by(n) for n in operator.derived.saved if n in read))
        arriving = [n for n in outputs if n in read]
        places = [o.name for o in variant.inputs] + operator.parameters + variant.keep.results
        self.arriving = [outputs.index(n) for n in arriving]
        saved += self._sizes_without_an_operand(programs, [read[n] for n in saved + arriving], variant)
        self.saved_of = _picker([places.index(n) for n in saved])
        read.update((o.name, o) for o in variant.inputs if o.name not in read)
        arguments = [read[n] for n in saved + arriving]
        gathered = products_gathered(programs, {o.name for o in arguments} | set(together), most_waiting=bool(operator.save))
        sums, axes = sums_of_runs(self.wanted, self._sources)
        for i, program in sums.items():
            results[results.index(self._sources[i][0])] = program.name
            self._sources[i] = program.name, program.operands[-1], None
        self.dtype, self.bits = variant.dtype, wanted
        self._orders = [*programs, *sums.values()], [*gathered, *sums.values()]
        self._arguments, self._axes, self._together = arguments, axes, together
        self._apart = columns_apart(operator, programs, arguments) if operator.columns else None
        self._found = {False: (results, self._sources), True: self._found_in_columns(results)}
        ours = {n for n in read if operator.derived.held_by(n) in operator.derived.extra}
        over = set.intersection(*(set(overwritten(order, ours, results).items()) for order in self._orders))
        self._over = {out: together.get(kept, (read[kept], "0")) for out, kept in sorted(over)}
        self._lent = [saved.index(name) for name in dict.fromkeys(held.name for held, _ in self._over.values())]
        self._sequences = {}
        last = len(outputs) - 1
        self._arriving_in_columns = [i for i in self.arriving if i < last] + [last + i for i in range(len(operator.columns))]
        self._inputs = variant.inputs
        self._places = {o.name: i for i, o in enumerate(variant.inputs)}

    @property
    def sequence(self):
        return self._sequence(False, False)

    def _sequence(self, columns, overwrites):
        """The programs as a function. columns: one gradient a weight arrives; overwrites: results may take the memory of what was
        kept."""
        made = self._sequences.get((columns, overwrites))
        if made is None:
            with LOCK:
                made = self._sequences.setdefault((columns, overwrites), self._made(columns, overwrites))
        return made

    def _made(self, columns, overwrites):
        operator, (whole, gathered), arguments, parts = self.operator, self._orders, self._arguments, dict(self._together)
        axes = self._axes
        if columns:
            axes = {**derived_axes(whole[0].text), **axes}
            whole, gathered, arguments = self._apart.order(whole), self._apart.order(gathered), self._apart.arguments
            parts.update(self._apart.parts)
        if overwrites:
            parts.update(self._over)
        leading = next((o.name for o in reversed(arguments) if len(o.dims) == 2 and o.dims[0] == operator.rows), None)
        return Sequence(f"{operator.name}_backward", whole, arguments, self._found[columns][0], operator.parameters,
                        operator.rows, leading, parts, axes, gathered, set(operator.derived.extra))

    def _found_in_columns(self, results):
        """Names of the results, and where the gradients of the wanted inputs are among them, if one gradient a weight arrives."""
        if not self._apart:
            return None
        programs, columns = self._apart.order(self._orders[0][1:]), self.operator.columns
        sources = [self._source(o, programs) if o.name in columns else found for o, found in zip(self.wanted, self._sources)]
        kept = [r for r in results if all(r != name for o, (name, *_) in zip(self.wanted, self._sources) if o.name in columns)]
        return [*kept, *dict.fromkeys(name for o, (name, *_) in zip(self.wanted, sources) if o.name in columns)], sources

    def _source(self, o, module):
        """Which out of the backward holds the gradient of input `o`, and which of a stack's parts it is."""
        outs = [x for p in module for x in p.operands if x.role != "in"]
        for x in outs:
            if x.name == f"d{o.name}":
                return x.name, x, None
        for x in outs:
            parts = self.operator.derived.parts(x.name)
            if o.name in parts:
                return x.name, x, parts
        raise NotImplementedError(f"coda::{self.operator.name}: no gradient of `{o.name}` ({o.dtype}"
                                  f"[{', '.join(o.dims)}]); detach it")

    @staticmethod
    def _sizes_without_an_operand(programs, arguments, variant):
        """Inputs that are kept because they alone have an axis whose size the programs need."""
        axes = {}
        for program in programs:
            axes.update(derived_axes(program.text))
        names = lambda dims: {n for d in dims for n in re.findall(r"[A-Za-z_]\w*", d)}  # noqa: E731
        needed = {a for p in programs for a in p.axes} | {n for p in programs for o in p.operands for n in names(o.dims)}
        known = {d for o in arguments for d in o.dims if d.isidentifier()}
        more = []
        for axis in sorted((needed | names(axes.values())) - known - set(axes)):
            source = next((o for o in variant.inputs if axis in o.dims), None)
            if source and axis not in known:
                more.append(source.name)
                known |= set(source.dims)
        return more

    def run(self, saved, gradients, columns, parameters, last):
        """The programs, on gradients of the outputs, and whether these were one a weight. saved: a list, which is emptied; columns:
        widths of the views that the last output left as; last: no other backward needs what was kept."""
        apart, arriving, key = False, self.arriving, device_key(saved[0] if saved else gradients[0])
        if columns and self._apart and not any(c % 128 for c in columns):
            apart, arriving = True, self._arriving_in_columns
        elif columns:
            gradients = self.operator.joined(gradients)
        overwrites = last and bool(self._lent) and all(_has_one_owner(saved, i) for i in self._lent)
        saved += [gradients[i] for i in arriving]
        return self._sequence(apart, overwrites).run(key, saved, *parameters), apart

    def finish(self, results, shapes, apart):
        """Gradients in the order of the arguments of the autograd function, None where none is asked for. apart: one gradient a
        weight has arrived."""
        (names, sources), made, sizes, places = self._found[apart], {}, None, self._places
        results = dict(zip(names, results))
        for o, (name, x, parts) in zip(self.wanted, sources):
            value = results[name]
            if parts:
                sizes = sizes or self.sizes(shapes)
                start = sum(sizes[self._dims(p)[0]] for p in parts[:parts.index(o.name)])
                made[o.name] = value.narrow(0, start, sizes[o.dims[0]])
            elif x.dims == o.dims:
                made[o.name] = value
            else:
                sizes = sizes or self.sizes(shapes)
                made[o.name] = self._fit(value, x.dims, o, sizes).reshape(shapes[places[o.name]])
        return (None, *(made.get(o.name) for o in self._inputs), *([None] * len(self.operator.parameters)))

    def _dims(self, name):
        return next(o.dims for o in self._inputs if o.name == name)

    def sizes(self, shapes):
        """Sizes of the axes, from the shapes of the operator's inputs."""
        rows = self.operator.rows
        return {d: s for o, shape in zip(self._inputs, shapes) for d, s in zip(o.dims, shape[-len(o.dims):] if o.dims else ())
                if d.isidentifier() and d != rows}

    def _fit(self, value, dims, o, sizes):
        """A gradient that comes as runs, or as one value for a whole row, in the shape of its input."""
        dtype = TORCH_DTYPE[o.dtype]
        if len(o.dims) == 0:
            return value.sum().to(dtype)
        if len(o.dims) == 1 and len(dims) == 2:
            value = value.sum(1 if dims[0] == o.dims[0] else 0)
            size = sizes.get(o.dims[0], value.shape[0])
            if value.shape[0] != size:  # repeat(g, N): element j belongs to g[j % size]
                value = value.view(-1, size).sum(0)
            return value.to(dtype)
        if len(o.dims) == 2 and "/" in o.dims[1] and dims[0] == o.dims[0]:  # of a partial: one value for a whole row
            value = (value if len(dims) == 1 else value.sum(-1)).reshape(-1, 1)
            run = int(o.dims[1].split("/")[1])
            width = sizes[o.dims[1].split("/")[0]]
            return value.expand(-1, -(-width // run)).to(dtype)
        raise NotImplementedError(f"coda::{self.operator.name}: the gradient of `{o.name}` comes as [{', '.join(dims)}]")
