"""A block or program as a torch operator: forward, derived backward, fake implementation, autograd."""

import dataclasses
import functools
import operator
import re
import sys
import threading

import torch
import torch.autograd.forward_ad as forward_ad

from .._errors import UnsupportedError
from .._program import Module, Operand
from ._columns import columns_apart
from ._launch import CODA_DTYPE, TORCH_DTYPE, cpu_name, device_key
from ._order import overwritten, product_form, products_gathered
from ._sequence import MOST_PLANS, Sequence, derived_axes
from ._sums import sums_of_runs

LIBRARY = torch.library.Library("coda", "DEF")
COMPUTE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_lock = threading.RLock()
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_traced = torch._C._get_tracing_state  # of torch.jit.trace
# No public class, so only of versions that were tried.
_TENSOR_GUARDS = torch._C._dynamo.guards.TensorGuards if torch.__version__.split(".")[:2] in (["2", "11"], ["2", "13"]) else None


def _direct(tensors):
    """Nobody looks on: no tracing, no mode, no transform, no subclass, no tangents, no view that torch has yet to negate. Then
    the dispatcher has nothing to do for us, and a call without it costs half."""
    if torch.compiler.is_compiling() or _modes() or _transforms() is not None or forward_ad._current_level >= 0 or _traced():
        return False
    for t in tensors:
        if type(t) not in _PLAIN or not (t.is_cuda or t.is_cpu) or t.is_neg():
            return False
    return True


def has_tangent(tensors):
    """Is one of these a dual number of forward-mode differentiation?"""
    return forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def refuse_unserved_modes(name, tensors, recorded):
    """Raises for ways to differentiate that our backwards do not serve and torch would pass over or say badly."""
    if has_tangent(tensors):
        raise NotImplementedError(f"coda::{name} has no forward-mode derivative (jvp, jacfwd, dual numbers); use reverse mode")
    if recorded and _transforms() is not None:
        raise NotImplementedError(f"coda::{name} has no derivative under torch.func's transforms (grad, vjp, jacrev); use "
                                  "torch.autograd.grad or backward()")


class Operator:
    """`coda::name`, made from one block or program.

    "bf16" in the text stands for the type of the call's tensors. Derived are: the programs that run without gradients, those
    that also keep what the backward reads, and the backward; all three are operators of their own (`name`, `name_keep`,
    `name_backward`), so that graphs see them whole. Matrices over the axis `rows` may have more leading dimensions. With
    `columns`, names of weights in a stack, `call` returns the last output as views, a weight's columns each. `save` names
    values of the block that are kept for the backward, which would else compute them again.
    """

    def __init__(self, name: str, text: str, rows: str | None = None, columns: tuple = (), save: tuple | None = None):
        self.rows, self.columns, self.save, self._variants, self._seen = rows, columns, save, {}, {}
        block = Module.parse(text, name)[0]
        self.name, self.module = name, Module.parse(re.sub(r"^program ", "block ", block.text), name)
        self.block = self.module[0]
        self.inputs = [o for o in self.block.operands if o.role == "in"]
        self.outputs = [o for o in self.block.operands if o.role != "in"]
        self._column_places = [i for i, o in enumerate(self.inputs) if o.name in columns]
        self.parameters = list(self.block.parameters)
        for o in self.outputs:
            if o.role == "accumulate":
                raise UnsupportedError(f"{name}: `{o.name} +=` changes a tensor in place; a torch operator returns new ones")
        self._register()

    @functools.cached_property
    def derived(self) -> "Derived":
        with _lock:
            return Derived(self)

    def variant(self, dtype: str) -> "Variant":
        return self.variant_of(TORCH_DTYPE[dtype])

    def variant_of(self, dtype: torch.dtype) -> "Variant":
        made = self._variants.get(dtype)
        if made is None:
            with _lock:
                made = self._variants.setdefault(dtype, Variant(self, CODA_DTYPE[dtype]))
        return made

    # ---------------------------------------------------------------- torch.library

    def _register(self):
        arguments = ", ".join([f"Tensor {o.name}" for o in self.inputs] + [f"float {p}" for p in self.parameters])
        returns = lambda n: "Tensor" if n == 1 else f"({', '.join(['Tensor'] * n)})"  # noqa: E731
        tags = (torch.Tag.pt2_compliant_tag,)
        count = len(self.outputs)
        LIBRARY.define(f"{self.name}({arguments}) -> {returns(count)}", tags=tags)
        LIBRARY.define(f"{self.name}_keep({arguments}) -> Tensor[]", tags=tags)
        LIBRARY.define(f"{self.name}_backward(Tensor[] tensors, float[] parameters, str dtype, int wanted)"
                       " -> Tensor[]", tags=tags)
        space = torch.ops.coda
        self.op = getattr(space, self.name).default
        self.keep_op = getattr(space, f"{self.name}_keep").default
        self.backward_op = getattr(space, f"{self.name}_backward").default
        first = self._first_typed()

        def plain(*arguments):
            results = self.variant_of(arguments[first].dtype).plain.run(device_key(arguments[0]), *arguments)
            return results[0] if count == 1 else results

        def fake_plain(*arguments):
            results = self.variant_of(arguments[first].dtype).plain.fake(None, *arguments)
            return results[0] if count == 1 else results

        def keep(*arguments):
            return list(self.variant_of(arguments[first].dtype).keep.run(device_key(arguments[0]), *arguments))

        def fake_keep(*arguments):
            return list(self.variant_of(arguments[first].dtype).keep.fake(None, *arguments))

        def backward(tensors, parameters, dtype, wanted):
            sequence = self.variant(dtype).backward(wanted).sequence
            return list(sequence.run(device_key(tensors[0]), list(tensors), *parameters))

        def fake_backward(tensors, parameters, dtype, wanted):
            return list(self.variant(dtype).backward(wanted).sequence.fake(None, *tensors, *parameters))

        for suffix, real, fake in (("", plain, fake_plain), ("_keep", keep, fake_keep), ("_backward", backward, fake_backward)):
            LIBRARY.impl(f"{self.name}{suffix}", real, "CompositeExplicitAutograd")
            torch.library.register_fake(f"coda::{self.name}{suffix}", fake, lib=LIBRARY)
        LIBRARY.impl(self.name, self._autograd(), "Autograd")
        LIBRARY.impl(f"{self.name}_keep", _without_derivative(self.keep_op, self.name), "Autograd")
        LIBRARY.impl(f"{self.name}_backward", _without_derivative(self.backward_op, self.name), "Autograd")

    def check(self, tensors):
        """Raises what torch users expect where types or devices do not fit; sizes are checked by the call."""
        first = self._first_typed()
        for o, t in zip(self.inputs, tensors):
            if not isinstance(t, torch.Tensor):
                raise TypeError(f"{self.name}: `{o.name}` must be a Tensor, not {type(t).__name__}")
            if t.device != tensors[0].device:
                raise RuntimeError(f"{self.name}: expected all tensors to be on the same device, but "
                                   f"`{self.inputs[0].name}` is on {tensors[0].device} and `{o.name}` is on {t.device}")
            if o.dtype == "bf16" and tensors[first].dtype not in COMPUTE_DTYPES:
                raise TypeError(f"{self.name}: `{self.inputs[first].name}` is {tensors[first].dtype}; coda computes in "
                                "bfloat16, float16 and float32")
            wanted = tensors[first].dtype if o.dtype == "bf16" else TORCH_DTYPE[o.dtype]
            if t.dtype is not wanted:
                raise TypeError(f"{self.name}: `{o.name}` is {t.dtype}; expected {wanted}")

    def _first_typed(self):
        return next((i for i, o in enumerate(self.inputs) if o.dtype == "bf16"), 0)

    def _arguments(self):
        """Names of the arguments in generated text: of the tensors, and of all."""
        tensors = [f"t_{o.name}" for o in self.inputs]
        return tensors, ", ".join(tensors + [f"p_{p}" for p in self.parameters])

    def _result(self):
        """What generated text makes of a tuple of results."""
        if self.columns:
            last = len(self.outputs) - 1
            before = f"*results[:{last}], *" if last else ""
            split = f"({before}results[{last}].split(ready.columns, -1))" if last else "results[0].split(ready.columns, -1)"
            return f"{split} if ready.columns else {f'results[:{last + 1}]' if last else 'results[0]'}"
        return "results[0]" if len(self.outputs) == 1 else f"results[:{len(self.outputs)}]"

    def _forward(self):
        """The forward of the autograd function, as text: no packing and unpacking of arguments on the way."""
        tensors, arguments = self._arguments()
        source = f"""def forward(ctx, ready, {arguments}):
    if ready is None: ready, results = dispatched(ctx, {arguments})
    else: results = ready.keep(ready.keep_plan, {arguments})
    ctx.ready = ready
    ctx.save_for_backward(*ready.saved_of(({arguments}, *results)))
    {f"ctx.parameters = ({arguments},)[{len(tensors)}:]" if self.parameters else ""}
    return {self._result()}
"""
        return _compiled(f"{self.name} forward", source, "forward", dispatched=self._keep_below)

    def _keep_below(self, ctx, *arguments):
        """The forward below the dispatcher, where the shapes may be symbols."""
        variant, tensors = self.variant_of(arguments[self._first_typed()].dtype), arguments[:len(self.inputs)]
        ready = Ready(variant, ctx.needs_input_grad[1:], tensors)
        with torch._C._AutoDispatchBelowAutograd():
            return ready, tuple(self.keep_op(*arguments))

    def _autograd(self):
        operator, numbers = self, len(self.parameters)

        class Function(torch.autograd.Function):
            """`ready` is what a direct call of these types, shapes and strides comes to; None below the dispatcher."""

            forward = staticmethod(operator._forward())

            @staticmethod
            def backward(ctx, *gradients):
                ready, saved, parameters = ctx.ready, list(ctx.saved_tensors), ctx.parameters if numbers else ()
                derived = ready.derived
                if grad_enabled() or not _direct(gradients) or not _direct(saved):
                    if ready.columns:
                        gradients = operator.joined(gradients)
                    tensors = (*saved, *(gradients[i] for i in derived.arriving))
                    results, apart = operator.backward_op(tensors, parameters, derived.dtype, derived.bits), False
                else:
                    ctx.maybe_clear_saved_tensors()  # where no other backward may follow
                    results, apart = derived.run(saved, gradients, ready.columns, parameters, not keeps_graph())
                return derived.finish(results, ready.shapes, apart)

        Function.__name__ = Function.__qualname__ = f"coda_{self.name}"
        op, grad_enabled, any_requires_grad = self.op, torch.is_grad_enabled, torch._C._any_requires_grad
        keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph

        def autograd(*arguments):
            recorded = grad_enabled() and any_requires_grad(*arguments)
            refuse_unserved_modes(operator.name, arguments[:len(operator.inputs)], recorded)
            if recorded:
                if operator.derived.why_not:
                    raise NotImplementedError(f"coda::{operator.name} has no backward: {operator.derived.why_not}")
                return Function.apply(None, *arguments)
            with torch._C._AutoDispatchBelowAutograd():
                return op(*arguments)

        self._apply = super(torch.autograd.Function, Function).apply  # without the wrapper that serves functorch
        return autograd

    # ---------------------------------------------------------------- without the dispatcher

    def call(self, *arguments):
        """Runs the operator, without the dispatcher where nobody looks on. Types are checked by the caller."""
        tensors, numbers = arguments[:len(self.inputs)], arguments[len(self.inputs):]
        direct = _direct(tensors)
        wanted = direct and torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)
        if not direct or (wanted and self.derived.why_not):
            results = self.op(*arguments)
            return self._columns_split(results, self._widths(tensors)) if self.columns else results
        ready = self._ready(tensors)
        if wanted:
            return self._apply(ready, *arguments)
        results = ready.plain(ready.plain_plan, *tensors, *numbers)
        results = results[0] if len(self.outputs) == 1 else results
        return self._columns_split(results, ready.columns) if self.columns else results

    def _columns_split(self, results, widths):
        """The last output as views of its columns, behind the others."""
        if len(self.outputs) == 1:
            return results.split(widths, -1)
        return (*results[:-1], *results[-1].split(widths, -1))

    def joined(self, gradients):
        """Gradients of the outputs, where those of the last one came a weight's columns each."""
        before = len(self.outputs) - 1
        return *gradients[:before], torch.cat(gradients[before:], -1)

    def _widths(self, tensors):
        return [tensors[i].shape[0] for i in self._column_places]

    @functools.cached_property
    def quick(self):
        """`call` for arguments whose types, shapes and strides it has seen; None for others and where somebody looks on."""
        tensors, arguments = self._arguments()
        signature = "".join(f"{t}.__class__, {t}.dtype, {t}.device, {t}.is_neg(), {t}.requires_grad, {t}.shape, {t}.stride(), "
                            for t in tensors)
        source = f"""def quick({arguments}):
    if compiling() or modes() or forward_ad._current_level >= 0 or traced(): return None
    guard, ready = recent[0]
    if not guard({", ".join(tensors)}):
        if transforms() is not None or autocast(): return None
        try:
            ready = find(({signature}))
        except (AttributeError, RuntimeError):  # no tensor, or one without strides
            return None
        if ready is None: return None
        recent[0] = ready.guard or guard_of(ready, {", ".join(tensors)}), ready
    if ready.cpu is not None and ready.cpu != cpu_name(): return None
    if ready.wanted and grad_enabled(): return apply(ready, {arguments})
    results = ready.plain(ready.plain_plan, {arguments})
    return {self._result()}
"""
        return _compiled(f"{self.name} quick", source, "quick", compiling=torch.compiler.is_compiling, modes=_modes,
                         forward_ad=forward_ad, traced=_traced, transforms=_transforms, autocast=torch._C._is_any_autocast_enabled, find=self._seen.get,
                         cpu_name=cpu_name, grad_enabled=torch.is_grad_enabled, apply=self._apply, guard_of=_guard_of,
                         recent=[(_never, None)])

    def _ready(self, tensors):
        """The plans for arguments of these types, shapes and strides."""
        signature = tuple(x for t in tensors
                          for x in (t.__class__, t.dtype, t.device, t.is_neg(), t.requires_grad, t.shape, t.stride()))
        key, ready = device_key(tensors[0]), self._seen.get(signature)
        if ready is None or (ready.cpu is not None and ready.cpu != key):
            for o, t in zip(self.inputs, tensors):
                if t.device != tensors[0].device:
                    raise RuntimeError(f"{self.name}: expected all tensors to be on the same device, but "
                                       f"`{self.inputs[0].name}` is on {tensors[0].device} and `{o.name}` is on {t.device}")
            needs = [t.requires_grad for t in tensors]
            ready = Ready(self.variant_of(tensors[self._first_typed()].dtype), needs, tensors)
            ready.prepare(key, tensors, self._widths(tensors) if self.columns else None)
            if len(self._seen) >= MOST_PLANS:
                self._seen.clear()
            if not any(needs) or not self.derived.why_not:
                self._seen[signature] = ready
        return ready


def _never(*tensors):
    return False


def _guard_of(ready, *tensors):
    """A function of tensors: have they the types, shapes and strides of these, outside of autocast, modes and transforms? It is
    torch.compile's own test, in a third of the time that looking them up takes."""
    ready.guard = _never
    if _TENSOR_GUARDS and not torch.is_inference_mode_enabled():
        ready.guard = _TENSOR_GUARDS(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                                     dynamic_dims_strides=[list(t.stride()) for t in tensors]).check
    return ready.guard


class Ready:
    """What a call comes to for arguments of given types, shapes and strides."""

    __slots__ = ("variant", "wanted", "shapes", "derived", "saved_of", "cpu", "columns", "plain", "plain_plan", "keep",
                 "keep_plan", "guard")

    def __init__(self, variant, needs, tensors):
        self.wanted = sum(1 << i for i, need in enumerate(needs[:len(variant.inputs)]) if need)
        self.variant, self.columns, self.shapes, self.guard = variant, None, [t.shape for t in tensors], None
        if self.wanted and not variant.operator.derived.why_not:
            self.derived = variant.backward(self.wanted)
            self.saved_of = self.derived.saved_of

    def prepare(self, key, tensors, columns):
        """The plan of the forward that is asked for now. The other's kernels may never be."""
        self.columns, self.cpu = columns, key if isinstance(key, str) else None
        for name in ("plain", "keep"):
            setattr(self, name, self._planning(name, key))
            setattr(self, f"{name}_plan", None)
        self._make_plan("keep" if self.wanted and torch.is_grad_enabled() else "plain", key, tensors)

    def _make_plan(self, name, key, tensors):
        plan = getattr(self.variant, name).plan(key, *tensors)
        setattr(self, f"{name}_plan", plan)  # before its body, which another thread may call at once
        setattr(self, name, plan[0])
        return plan

    def _planning(self, name, key):
        """What stands in for a run that has no plan yet."""
        def first(_, *arguments):
            plan = self._make_plan(name, key, arguments[:len(self.variant.inputs)])
            return plan[0](plan, *arguments)
        return first


class Underived(torch.autograd.Function):
    """Results of an operator whose own derivative nobody knows."""

    @staticmethod
    def forward(ctx, name, count, *tensors):
        ctx.name = name
        return tensors[:count]

    @classmethod
    def of(cls, name, results):
        """The results as something that seems to depend on something, so that a derivative is asked for and refused."""
        return cls.apply(name, len(results), *(r.detach().requires_grad_() for r in results))

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError(f"coda::{ctx.name} has no second derivative; use torch's own operators for it")


def _without_derivative(op, name):
    """How an operator that returns Tensor[] runs where gradients are recorded. (torch.library.register_autograd does this too,
    in three milliseconds an operator.)"""
    def autograd(*arguments):
        with torch._C._AutoDispatchBelowAutograd():
            results = op(*arguments)
        inputs = [t for a in arguments for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, torch.Tensor)]
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs):
            return list(Underived.apply(name, len(results), *results, *inputs))
        return results
    return autograd


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


def _compiled(name, source, function, **scope):
    exec(compile(source, f"<coda {name}>", "exec"), scope)
    return scope[function]


class Derived:
    """What the compiler makes of an operator's block."""

    def __init__(self, operator: "Operator"):
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

    def __init__(self, operator: Operator, dtype: str):
        self.operator, self.dtype = operator, dtype
        derived = operator.derived
        retype = lambda module: module if dtype == "bf16" else module.retype("bf16", dtype)  # noqa: E731
        block = retype(operator.module)[0]
        self.inputs = [o for o in block.operands if o.role == "in"]
        outputs = [o.name for o in operator.outputs]
        shape = {"rows": operator.rows, "leading": self.inputs[0].name}
        self.plain = Sequence(operator.name, retype(derived.plain), self.inputs, outputs, operator.parameters, **shape)
        typed = lambda o: dataclasses.replace(o, dtype=dtype) if o.dtype == "bf16" else o  # noqa: E731
        self.together = {name: (typed(held), column) for name, (held, column) in derived.together.items()}
        self.keep = Sequence(operator.name, retype(derived.kept), self.inputs, outputs + derived.extra,
                             operator.parameters, parts=self.together, **shape)
        self._retype, self._backwards = retype, {}

    def backward(self, wanted: int) -> "Backward":
        made = self._backwards.get(wanted)
        if made is None:
            with _lock:
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
        over = overwritten(self._orders[0], ours, results)
        self._over = {out: together.get(kept, (read[kept], "0")) for out, kept in over.items()}
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
            with _lock:
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
