"""A block or program as a torch operator: forward, derived backward, fake implementation, autograd."""

import functools
import re

import torch
import torch.autograd.forward_ad as forward_ad

from .._errors import UnsupportedError
from .._program import Module
from ._derived import LOCK, Derived, Variant
from ._launch import CODA_DTYPE, TORCH_DTYPE, cpu_name, device_key
from ._sequence import MOST_PLANS

LIBRARY = torch.library.Library("coda", "DEF")
COMPUTE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
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
        self.name, self.title, self.module = name, block.name, Module.parse(re.sub(r"^program ", "block ", block.text), name)
        self.block = self.module[0]
        self.inputs = [o for o in self.block.operands if o.role == "in"]
        self.outputs = [o for o in self.block.operands if o.role != "in"]
        self._column_places = [i for i, o in enumerate(self.inputs) if o.name in columns]
        self.parameters = list(self.block.parameters)
        for o in self.outputs:
            if o.role == "accumulate":
                raise UnsupportedError(f"{name}: `{o.name} +=` changes a tensor in place; a torch operator returns new ones")
        self.quick = self._quick_at_first
        self._register()

    @functools.cached_property
    def derived(self) -> "Derived":
        with LOCK:
            return Derived(self)

    def variant(self, dtype: str) -> "Variant":
        return self.variant_of(TORCH_DTYPE[dtype])

    def variant_of(self, dtype: torch.dtype) -> "Variant":
        made = self._variants.get(dtype)
        if made is None:
            with LOCK:
                made = self._variants.setdefault(dtype, Variant(self, CODA_DTYPE[dtype]))
        return made

    # ---------------------------------------------------------------- torch.library

    def _register(self):
        arguments = ", ".join([f"Tensor {_schema_name(o.name)}" for o in self.inputs] +
                              [f"float {_schema_name(p)}" for p in self.parameters])
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
                raise TypeError(f"{self.title}: `{o.name}` must be a Tensor, not {type(t).__name__}")
            if t.device != tensors[0].device:
                raise RuntimeError(f"{self.title}: expected all tensors to be on the same device, but "
                                   f"`{self.inputs[0].name}` is on {tensors[0].device} and `{o.name}` is on {t.device}")
            if o.dtype == "bf16" and tensors[first].dtype not in COMPUTE_DTYPES:
                raise TypeError(f"{self.title}: `{self.inputs[first].name}` is {tensors[first].dtype}; coda computes in "
                                "bfloat16, float16 and float32")
            wanted = tensors[first].dtype if o.dtype == "bf16" else TORCH_DTYPE[o.dtype]
            if t.dtype is not wanted:
                raise TypeError(f"{self.title}: `{o.name}` is {t.dtype}; expected {wanted}")

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

    def _quick_at_first(self, *arguments):
        """`quick` before it is there. (A property made once has a lock in Python 3.11, where torch.compile does not enter.)"""
        if torch.compiler.is_compiling():
            return None
        self.quick = self._make_quick()
        return self.quick(*arguments)

    def _make_quick(self):
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


@functools.cache
def _schema_name(name):
    """The name of an argument in torch's schema, whose parser has words of its own."""
    try:
        torch._C.parse_schema(f"f(Tensor {name}) -> Tensor")
        return name
    except RuntimeError:
        return f"{name}_"


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


def _compiled(name, source, function, **scope):
    exec(compile(source, f"<coda {name}>", "exec"), scope)
    return scope[function]
