"""The operators as functions: shapes of any rank, autocast, checks in the caller's terms."""

from typing import NamedTuple

import torch

from ._blocks import OPERATORS
from ._cross_entropy import MEAN, NONE, SUM, lean_rows
from ._operator import COMPUTE_DTYPES

_linear, _swiglu = OPERATORS["linear"], OPERATORS["linear_swiglu"]


class Normed(NamedTuple):
    """An RMS-normalised tensor whose row scale is still to be applied, as `linear_residual_rmsnorm` returns it.

    `linear`, `linear_swiglu`, `linear_geglu`, `linear_rope` and `linear_qknorm_rope` take it in place of `x` and finish the scale
    while they multiply, so no kernel runs between. `tensor()` finishes it for other uses.
    """

    hidden: torch.Tensor   # x * norm_weight
    squares: torch.Tensor  # sums of x^2 over runs of 128 columns, f32
    eps: float

    def tensor(self) -> torch.Tensor:
        """The normalised tensor itself."""
        scale = torch.rsqrt(self.squares.sum(-1, keepdim=True) / self.hidden.shape[-1] + self.eps)
        return (self.hidden.float() * scale).to(self.hidden.dtype)


# ---------------------------------------------------------------- arguments

def _fits(x, tensors):
    """Nothing to cast and nothing to refuse: the common case, decided fast."""
    try:
        dtype, place = x.dtype, x.get_device()
        if dtype not in COMPUTE_DTYPES or torch.is_autocast_enabled("cuda" if place >= 0 else "cpu") or not x.dim():
            return False
        for t in (x, *tensors):
            if t.dtype is not dtype or t.get_device() != place or t.is_meta or t.layout is not torch.strided:
                return False
        return True
    except AttributeError:
        return False


def autocasts(x):
    """Is autocast on for tensors like this one? (torch's function fails for devices that have none, such as meta.)"""
    return x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type)


def _prepare(name, x, names, tensors):
    """x and the other tensors, cast where autocast asks for it; raises where types or devices do not fit."""
    if _fits(x, tensors):
        return x, tensors
    if isinstance(x, Normed):
        raise TypeError(f"{name}: `x` is a Normed, which this operator does not take; pass x.tensor()")
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: `x` must be a Tensor, not {type(x).__name__}")
    if autocasts(x):
        to = torch.get_autocast_dtype(x.device.type)
        cast = lambda t: t.to(to) if isinstance(t, torch.Tensor) and t.dtype in COMPUTE_DTYPES else t  # noqa: E731
        x, tensors = cast(x), [cast(t) for t in tensors]
    if x.dtype not in COMPUTE_DTYPES:
        raise TypeError(f"{name}: `x` is {x.dtype}; coda computes in bfloat16, float16 and float32")
    if x.dim() == 0:
        raise ValueError(f"{name}: `x` is a scalar; expected [..., features]")
    for what, t in zip(("x", *names), (x, *tensors)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name}: `{what}` must be a Tensor, not {type(t).__name__}")
        if t.layout is not torch.strided:
            raise TypeError(f"{name}: `{what}` has layout {t.layout}; expected a dense tensor")
        if t.device != x.device:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, but `x` is on {x.device} and "
                               f"`{what}` is on {t.device}")
        if t.dtype is not x.dtype:
            raise TypeError(f"{name}: `x` is {x.dtype} and `{what}` is {t.dtype}; convert one of them, or use "
                            "torch.autocast")
    return x, tensors


def _offset(name, norm_offset):
    if norm_offset not in (0, 1):
        raise ValueError(f"{name}: norm_offset is {norm_offset}; expected 0, or 1 where the weight is stored minus 1 (Gemma)")
    return norm_offset == 1


def _call(name, x, names, tensors, norm_weight, norm_offset, eps, rest=(), numbers=()):
    """Runs an operator in the form that such an `x` needs: as it is, to be normalised, or a Normed."""
    if x.__class__ is Normed:
        if norm_weight is not None:
            raise ValueError(f"{name}: `x` is normalised already; leave out norm_weight")
        operator, squares, eps = OPERATORS["deferred_" + name], x.squares, x.eps
        y = operator.quick(x.hidden, squares, *tensors, *rest, eps, *numbers)
        if y is None:
            hidden, tensors = _prepare(name, x.hidden, names, tensors)
            y = operator.call(hidden, squares, *tensors, *rest, eps, *numbers)
        return y
    if norm_weight is None:
        operator = OPERATORS[name]
        y = operator.quick(x, *tensors, *rest, *numbers)
        if y is None:
            x, tensors = _prepare(name, x, names, tensors)
            y = operator.call(x, *tensors, *rest, *numbers)
        return y
    operator = OPERATORS[("norm1_" if _offset(name, norm_offset) else "norm_") + name]
    y = operator.quick(x, norm_weight, *tensors, *rest, eps, *numbers)
    if y is not None:
        return y
    if isinstance(x, torch.Tensor) and x.dtype is torch.float32:
        autocast = autocasts(x)
        if autocast or (isinstance(tensors[0], torch.Tensor) and tensors[0].dtype is not torch.float32):
            prefix = "norm1" if norm_offset else "norm"
            return _call_f32(name, prefix, x, names, tensors, norm_weight, eps, rest, numbers, autocast)
    x, tensors = _prepare(name, x, ("norm_weight", *names), (norm_weight, *tensors))
    return operator.call(x, *tensors, *rest, eps, *numbers)


def _call_f32(name, prefix, x, names, tensors, norm_weight, eps, rest, numbers, autocast):
    """A norm of an f32 residual stream before weights of a 16-bit type: what autocast makes of it, or a model that keeps its
    stream in f32."""
    if autocast:
        norm_weight = norm_weight.float()
    elif not isinstance(norm_weight, torch.Tensor) or norm_weight.dtype is not torch.float32:
        raise TypeError(f"{name}: `x` is torch.float32 and `norm_weight` is {getattr(norm_weight, 'dtype', norm_weight)}; a "
                        "float32 residual stream needs a float32 norm_weight")
    if norm_weight.device != x.device:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but `x` is on {x.device} and "
                           f"`norm_weight` is on {norm_weight.device}")
    first, others = _prepare(name, tensors[0], names[1:], tensors[1:])
    if first.dtype is torch.float32:  # autocast to float32
        return OPERATORS[f"{prefix}_{name}"].call(x, norm_weight, first, *others, *rest, eps, *numbers)
    if first.device != x.device:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but `x` is on {x.device} and "
                           f"`{names[0]}` is on {first.device}")
    return OPERATORS[f"{prefix}_f32_{name}"].call(x, norm_weight, first, *others, *rest, eps, *numbers)


# ---------------------------------------------------------------- operators

def linear(x, weight, bias=None, *, norm_weight=None, norm_offset=0, eps=1e-6):
    """`x @ weight.T + bias`, of `rms_norm(x) * norm_weight` where a norm_weight is given.

    x         [..., K], or a Normed
    weight    [N, K], as nn.Linear stores it;  bias  [N] or None
    """
    if bias is None:
        if norm_weight is None:
            y = _linear.quick(x, weight)
            if y is not None:
                return y
        return _call("linear", x, ("weight",), (weight,), norm_weight, norm_offset, eps)
    return _call("linear_bias", x, ("weight", "bias"), (weight, bias), norm_weight, norm_offset, eps)


def rmsnorm_linear(x, norm_weight, weight, bias=None, *, eps=1e-6, norm_offset=0):
    """`(x * rsqrt(mean(x^2) + eps) * (norm_offset + norm_weight)) @ weight.T + bias`."""
    if norm_weight is None:
        raise TypeError("rmsnorm_linear: `norm_weight` must be a Tensor, not None; without a norm this is `linear`")
    return linear(x, weight, bias, norm_weight=norm_weight, norm_offset=norm_offset, eps=eps)


def linear_residual(x, weight, residual):
    """`x @ weight.T + residual`."""
    y = OPERATORS["linear_residual"].quick(x, weight, residual)
    if y is not None:
        return y
    if _stream_stays_f32(x, residual):
        return residual + linear(x, weight)
    x, tensors = _prepare("linear_residual", x, ("weight", "residual"), (weight, residual))
    _check_rows("linear_residual", x, residual)
    return OPERATORS["linear_residual"].call(x, *tensors)


def linear_residual_rmsnorm(x, weight, residual, norm_weight, *, eps=1e-6, norm_offset=0):
    """`y = x @ weight.T + residual`, and its RMSNorm up to the row scale.

    Returns (y, Normed): give the second to any operator here, which finishes it while it multiplies.
    """
    name = "linear_residual_rmsnorm"
    operator = OPERATORS[name + ("1" if _offset(name, norm_offset) else "")]
    made = operator.quick(x, weight, residual, norm_weight)
    if made is None and _stream_stays_f32(x, residual):
        y = residual + linear(x, weight)
        squares = torch.nn.functional.pad(y * y, (0, -y.shape[-1] % 128)).unflatten(-1, (-1, 128)).sum(-1)
        made = y, (y * (norm_weight.float() + norm_offset)).to(torch.get_autocast_dtype(y.device.type)), squares
    if made is None:
        x, tensors = _prepare(name, x, ("weight", "residual", "norm_weight"), (weight, residual, norm_weight))
        _check_rows(name, x, residual)
        made = operator.call(x, *tensors)
    y, h, squares = made
    return y, Normed(h, squares, eps)


def _stream_stays_f32(x, residual):
    """Under autocast a sum with an f32 residual stream is f32, as in torch: then the sums are not fused."""
    return isinstance(x, torch.Tensor) and isinstance(residual, torch.Tensor) and residual.dtype is torch.float32 and \
        autocasts(x) and torch.get_autocast_dtype(x.device.type) is not torch.float32


def _check_rows(name, x, residual):
    if residual.shape[:-1] != x.shape[:-1]:
        raise ValueError(f"{name}: `residual` has shape {list(residual.shape)}; expected the leading dimensions of `x`, "
                         f"{list(x.shape[:-1])}, and the rows of `weight`")


def linear_swiglu(x, gate, up, *, norm_weight=None, norm_offset=0, eps=1e-6):
    """`silu(x @ gate.T) * (x @ up.T)`, of the normalised x where a norm_weight is given. gate, up: [N, K]."""
    if norm_weight is None:
        y = _swiglu.quick(x, gate, up)
        if y is not None:
            return y
    return _call("linear_swiglu", x, ("gate", "up"), (gate, up), norm_weight, norm_offset, eps)


def linear_geglu(x, gate, up, *, norm_weight=None, norm_offset=0, eps=1e-6):
    """`gelu(x @ gate.T) * (x @ up.T)` with the tanh form of gelu (Gemma). gate, up: [N, K]."""
    return _call("linear_geglu", x, ("gate", "up"), (gate, up), norm_weight, norm_offset, eps)


def rope_table(positions: int, head_dim: int, theta: float = 10000.0, *, device=None) -> torch.Tensor:
    """Cosines and sines of rotary embeddings for positions 0..positions-1: f32 [positions, head_dim]."""
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"rope_table: head_dim is {head_dim}; pairs are rotated, so it must be even")
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float64) / head_dim)
    angle = torch.arange(positions, device=device, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], 1).float()


def _is_float(table):
    return isinstance(table, torch.Tensor) and table.is_floating_point()


def _rotary(name, x, table, positions, what="x"):
    """Table and one position a row, as i32."""
    hidden = x.hidden if isinstance(x, Normed) else x
    if not isinstance(hidden, torch.Tensor):
        raise TypeError(f"{name}: `{what}` must be a Tensor{' or a Normed' if what == 'x' else ''}, not {type(x).__name__}")
    if not isinstance(table, torch.Tensor) or table.dtype is not torch.float32 or table.dim() != 2:
        raise TypeError(f"{name}: `table` must be a float32 tensor [positions, head_dim], as rope_table makes it"
                        f"{'; a module that holds it as a buffer converts it' if _is_float(table) else ''}")
    lead = hidden.shape[:-1]
    if positions is None:
        if not lead or lead[-1] > table.shape[0]:
            raise ValueError(f"{name}: `{what}` has {lead[-1] if lead else 0} positions, the table {table.shape[0]}")
        positions = torch.arange(lead[-1], device=hidden.device, dtype=torch.int32)
    if positions.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: `positions` is {positions.dtype}; expected int32 or int64")
    positions = positions.to(torch.int32)
    if positions.shape != lead:
        try:
            positions = positions.expand(lead)
        except RuntimeError:
            raise ValueError(f"{name}: `positions` has shape {list(positions.shape)}, which does not broadcast to the "
                             f"leading dimensions of `{what}`, {list(lead)}") from None
    return table, positions.reshape(-1)


def _check_heads(name, query, key, table):
    head = table.shape[1]
    for what, w in (("query", query), ("key", key)):
        if isinstance(w, torch.Tensor) and head and w.shape[0] % head:
            raise ValueError(f"{name}: `{what}` has {w.shape[0]} rows, which are no multiple of the table's head_dim {head}")


def _qkv(name, x, query, key, value, table, positions, bias, norms, numbers, norm_weight, norm_offset, eps):
    rest = _rotary(name, x, table, positions)
    _check_heads(name, query, key, table)
    names, tensors = ("query", "key", "value"), (query, key, value)
    if bias is not None:
        name, names, tensors = name + "_bias", (*names, "bias"), (*tensors, bias)
    if norms:
        names, tensors = (*names, "query_norm", "key_norm"), (*tensors, *norms)
    return _call(name, x, names, tensors, norm_weight, norm_offset, eps, rest, numbers)


def linear_rope(x, query, key, value, table, positions=None, *, bias=None, norm_weight=None, norm_offset=0, eps=1e-6):
    """Query, key and value projections, queries and keys rotated (halves, as Hugging Face's Llama).

    query      [heads * D, K];  key, value  [kv_heads * D, K];  bias  [(heads + 2 kv_heads) D] or None
    table      f32 [P, D], see rope_table: cosines and sines of angles. With a bias and a norm_weight gradients are those of a
               rotation, so there it must not be scaled (as yarn scales it)
    positions  integers that broadcast to x's leading dimensions; None: 0, 1, 2, .. along the last of them

    Returns q, k, v: views of one tensor, each [..., heads * D].
    """
    return _qkv("linear_rope", x, query, key, value, table, positions, bias, (), (), norm_weight, norm_offset, eps)


def linear_qknorm_rope(x, query, key, value, query_norm, key_norm, table, positions=None, *, bias=None, head_eps=1e-6,
                       norm_weight=None, norm_offset=0, eps=1e-6):
    """`linear_rope` with an RMSNorm of every query and key head before the rotation (Qwen3). query_norm, key_norm: [D].

    norm_offset   1: norm_weight, query_norm and key_norm are stored minus 1 (Gemma 3)
    """
    if norm_offset and norm_weight is None:
        raise ValueError("linear_qknorm_rope: norm_offset=1 needs a norm_weight; without one, add 1 to query_norm and key_norm")
    norms = (query_norm, key_norm)
    return _qkv("linear_qknorm_rope", x, query, key, value, table, positions, bias, norms, (head_eps,), norm_weight,
                norm_offset, eps)


def _rest_of_layer(name, activation, norm_offset, recompute):
    """The name of the operator behind a layer's attention, up to what it makes for the next layer."""
    gates = {"silu": "swiglu", "gelu_tanh": "geglu"}
    if activation not in gates:
        raise ValueError(f"{name}: activation {activation!r}; expected {' or '.join(map(repr, gates))}")
    return f"{'recompute_' if recompute else ''}attention_output_{gates[activation]}{'1' if _offset(name, norm_offset) else ''}"


def attention_output_mlp(y, residual, output, norm_weight, gate, up, down, *, activation="silu", output_norm=None,
                         down_norm=None, norm_offset=0, eps=1e-6, recompute=False):
    """A decoder layer after its attention, as three kernels forward and seven backward:

    x1 = y @ output.T + residual;  h = rms_norm(x1) * norm_weight;  x = (silu(h @ gate.T) * (h @ up.T)) @ down.T + x1

    output_norm, down_norm   both: weights of norms behind the products of output and of down, before the residual is added
                (Gemma 2 and 3). Two passes over the stream more, since each waits for whole rows of its product
    norm_offset 1: every weight of a norm is stored minus 1
    recompute   for the backward keep x1 and the products of gate and up, but not silu(..) * (..), which it makes again: a third
                less of memory, and a write more
    """
    name = "attention_output_mlp"
    kind = _rest_of_layer(name, activation, norm_offset, recompute)
    names, tensors = ("residual", "output", "norm_weight", "gate", "up", "down"), (residual, output, norm_weight, gate, up, down)
    if (output_norm is None) != (down_norm is None):
        raise TypeError(f"{name}: of `output_norm` and `down_norm` one is None; give both or neither")
    if output_norm is not None:
        kind, names, tensors = f"{kind}_sandwich", (*names, "output_norm", "down_norm"), (*tensors, output_norm, down_norm)
    operator = OPERATORS[kind]
    x = operator.quick(y, *tensors, eps)
    if x is None and _stream_stays_f32(y, residual):
        norm = lambda z, weight: z if weight is None else torch.nn.functional.rms_norm(  # noqa: E731
            z.float(), z.shape[-1:], weight.float() + norm_offset, eps).to(z.dtype)
        x = residual + norm(linear(y, output), output_norm)
        gated = linear_swiglu if activation == "silu" else linear_geglu
        a = gated(x, gate, up, norm_weight=norm_weight, norm_offset=norm_offset, eps=eps)
        return x + norm(linear(a, down), down_norm)
    if x is None:
        y, tensors = _prepare(name, y, names, tensors)
        _check_rows(name, y, residual)
        x = operator.call(y, *tensors, eps)
    return x


def attention_output_mlp_rope(y, residual, output, norm_weight, gate, up, down, next_norm_weight, query, key, value, table,
                              positions=None, *, bias=None, query_norm=None, key_norm=None, activation="silu",
                              norm_offset=0, eps=1e-6, next_eps=None, head_eps=1e-6, recompute=False):
    """From one layer's attention to the next one's: `attention_output_mlp`, and of its result x the next layer's norm and
    `linear_rope` (`linear_qknorm_rope` if query_norm and key_norm are given), as four kernels forward: the norm's sums and
    weight go out with x, its row scale is applied behind query, key and value, and in the backward the residual stream's
    gradients meet in a product's epilogue. next_eps: of the next norm, eps if None; norm_offset, for all norms, and recompute: as
    there.

    Returns x, q, k, v; the last three views of one tensor, each [..., heads * D].
    """
    name = "attention_output_mlp_rope"
    base = _rest_of_layer(name, activation, norm_offset, recompute)
    if (query_norm is None) != (key_norm is None):
        raise TypeError(f"{name}: of `query_norm` and `key_norm` one is None; give both or neither")
    rest = _rotary(name, y, table, positions, "y")
    _check_heads(name, query, key, table)
    operator = OPERATORS[f"{base}_{'' if query_norm is None else 'qknorm_'}rope{'' if bias is None else '_bias'}"]
    names = ["residual", "output", "norm_weight", "gate", "up", "down", "next_norm_weight", "query", "key", "value"]
    tensors = [residual, output, norm_weight, gate, up, down, next_norm_weight, query, key, value]
    numbers = [eps, eps if next_eps is None else next_eps]
    for what, t in (("bias", bias), ("query_norm", query_norm), ("key_norm", key_norm)):
        if t is not None:
            names.append(what)
            tensors.append(t)
    if query_norm is not None:
        numbers.append(head_eps)
    made = operator.quick(y, *tensors, *rest, *numbers)
    if made is None and _stream_stays_f32(y, residual):
        x = attention_output_mlp(y, *tensors[:6], activation=activation, norm_offset=norm_offset, eps=eps)
        norms = {} if query_norm is None else {"query_norm": query_norm, "key_norm": key_norm, "head_eps": head_eps}
        project = linear_rope if query_norm is None else linear_qknorm_rope
        return x, *project(x, query, key, value, table=table, positions=positions, bias=bias, norm_weight=next_norm_weight,
                           norm_offset=norm_offset, eps=numbers[1], **norms)
    if made is None:
        y, tensors = _prepare(name, y, names, tensors)
        _check_rows(name, y, residual)
        made = operator.call(y, *tensors, *rest, *numbers)
    return made


def linear_cross_entropy(x, weight, target, *, ignore_index=-100, reduction="mean", label_smoothing=0.0, softcap=0.0,
                         z_loss=0.0, main_grad=None, chunk_rows=None, recompute=None, exact=True,
                         lean=False):
    """`cross_entropy(x @ weight.T, target)` whose logits exist for one chunk of rows at a time.

    x           [..., K], or a Normed;  weight  [V, K], the head;  target  integers of x's leading dimensions
    reduction   "mean" over the targets that are not ignore_index, "sum" or "none" (the shape of target)
    softcap     > 0: logits become softcap * tanh(logits / softcap); 0 or None: they stay
    z_loss      > 0: returns (loss, z) with z = z_loss * lse^2, reduced alike; each has its gradient
    main_grad   f32 [V, K]: receives the weight's gradient by addition, and weight.grad stays as it is
    recompute   False: gradients are made in the forward, while the logits are there (three products). True: the backward
                makes the logits again (four products, no memory kept between). None: False where it is possible, which
                is: "mean" or "sum", no z_loss, no main_grad
    exact       the gradient of a 16-bit weight adds up over chunks in f32, in three times its memory at the end; False: in
                its own type, rounded with every chunk
    chunk_rows  rows whose logits exist at a time; None: as many as make them at most twice the weight
    lean        True: the least memory that costs little time: exact=False, and logits of a quarter of the weight

    The loss is f32. Losses of ignored targets are 0; a mean over none is NaN, as in torch.
    """
    name = "linear_cross_entropy"
    modes = {"none": NONE, "mean": MEAN, "sum": SUM}
    if reduction not in modes:
        raise ValueError(f"{name}: {reduction} is not a valid value for reduction; expected 'none', 'mean' or 'sum'")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    softcap = softcap or 0.0
    if softcap < 0 or z_loss < 0:
        raise ValueError(f"{name}: softcap and z_loss must not be negative")
    x = x.tensor() if isinstance(x, Normed) else x
    matrix, (weight,) = _prepare(name, x, ("weight",), (weight,))
    matrix = matrix.reshape(-1, matrix.shape[-1])
    if weight.dim() != 2 or weight.shape[1] != matrix.shape[1]:
        raise ValueError(f"{name}: `weight` has shape {list(weight.shape)}; expected [V, {matrix.shape[1]}]")
    rows, ignore_index = _targets(name, x, target, weight.shape[0], ignore_index)
    required = reduction == "none" or z_loss > 0 or main_grad is not None
    if recompute is False and required:
        raise ValueError(f"{name}: recompute=False needs reduction 'mean' or 'sum', no z_loss and no main_grad")
    if main_grad is not None and (not isinstance(main_grad, torch.Tensor) or main_grad.dtype is not torch.float32 or main_grad.shape != weight.shape or
                                  main_grad.device != weight.device or not main_grad.is_contiguous()):
        raise ValueError(f"{name}: `main_grad` must be a contiguous float32 tensor of the weight's shape "
                         f"{list(weight.shape)} on {weight.device}")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"{name}: chunk_rows is {chunk_rows}; expected at least 1")
    if lean:
        if chunk_rows is not None:
            raise ValueError(f"{name}: lean=True chooses chunk_rows; {chunk_rows} was given beside it")
        chunk_rows, exact = lean_rows(weight.shape[1]), False
    loss, z = torch.ops.coda.linear_cross_entropy(
        matrix, weight, rows, main_grad, modes[reduction], ignore_index, float(label_smoothing), float(softcap),
        float(z_loss), chunk_rows or 0, bool(required if recompute is None else recompute), bool(exact))
    if reduction == "none":
        loss, z = loss.view(target.shape), z.view(target.shape)
    return (loss, z) if z_loss > 0 else loss


def _targets(name, x, target, classes, ignore_index):
    """Targets as i32 rows, and which of them is ignored. Out of range is an IndexError on the CPU and a device assertion on a GPU, as in torch."""
    if not isinstance(target, torch.Tensor) or target.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: `target` must be an int64 or int32 tensor, not "
                        f"{target.dtype if isinstance(target, torch.Tensor) else type(target).__name__}")
    if target.device != x.device:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but `x` is on {x.device} and `target` "
                           f"is on {target.device}")
    if target.shape != x.shape[:-1]:
        raise ValueError(f"{name}: Expected target of shape {list(x.shape[:-1])}, the leading dimensions of `x`, got "
                         f"{list(target.shape)}")
    flat = target.reshape(-1)
    bad = (flat != ignore_index) & ((flat < 0) | (flat >= classes))
    if not -2**31 <= ignore_index < 2**31:  # rows are i32
        flat, ignore_index = flat.masked_fill(flat == ignore_index, -100), -100
    if not torch.compiler.is_compiling() and target.device.type == "cpu":
        if bad.any():
            raise IndexError(f"Target {int(flat[bad][0])} is out of bounds.")
    else:
        # with a text: torch.compile drops assertions without one
        torch._assert_async(~bad.any(), f"{name}: a target is out of bounds")
    return flat.to(torch.int32), ignore_index
