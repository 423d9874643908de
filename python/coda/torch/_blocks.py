"""The texts of the operators. Names of operands are the names of the functions' arguments."""

import itertools

from ._operator import Operator

# How the left operand comes: as it is; to be normalised, by weight or by 1 + weight (Gemma), from a residual stream of the
# weights' type or of f32; or normalised but for the row scale, which is finished here from sums of squares.
_INPUTS = {
    "": ("in  x : bf16[M, K]", "x", ""),
    "norm": ("in  x : bf16[M, K]; in  norm_weight : bf16[K]; param eps = 1e-6", "rmsnorm(x, norm_weight, eps)", ""),
    "norm1": ("in  x : bf16[M, K]; in  norm_weight : bf16[K]; param eps = 1e-6", "rmsnorm(x, 1 + norm_weight, eps)", ""),
    "norm_f32": ("in  x : f32[M, K]; in  norm_weight : f32[K]; param eps = 1e-6", "rmsnorm(x, norm_weight, eps)", ""),
    "norm1_f32": ("in  x : f32[M, K]; in  norm_weight : f32[K]; param eps = 1e-6", "rmsnorm(x, 1 + norm_weight, eps)", ""),
    "deferred": ("in  x : bf16[M, K]; in  squares : f32[M, K/128]; param eps = 1e-6\n"
                 "    r = rsqrt(sum(squares) / K + eps)", "x", " * r"),
}
_GATES = {"swiglu": "silu", "geglu": "gelu_tanh"}
# Names of operators that compute the MLP's activation again in the backward; the others keep it.
_RECOMPUTE = "recompute_"


def _linear(form, bias):
    inputs, h, scale = _INPUTS[form]
    return f"""
    {inputs}
    in  weight : bf16[N, K]
    {'in  bias : bf16[N]' if bias else ''}
    out y : bf16[M, N] = {h} @ weight.T{scale}{' + bias' if bias else ''}"""


def _gated(form, activation):
    inputs, h, scale = _INPUTS[form]
    named = "" if h == "x" else f"h = {h}"  # one norm, read by both products
    left = "x" if h == "x" else "h"
    return f"""
    {inputs}
    in  gate, up : bf16[N, K]
    {named}
    g = {left} @ gate.T{scale}
    u = {left} @ up.T{scale}
    out y : bf16[M, N] = {activation}(g) * u"""


def _rope(form, bias, norm):
    """Query, key and value; queries and keys rotated, and normalised by head before if `norm` (Qwen3, Gemma3)."""
    inputs, h, scale = _INPUTS[form]
    weights, product = _query_key_value(h, "K", scale, bias, norm, form.startswith("norm1"))
    return f"""
    axis N = Q + 2*E
    axis T = Q + E
    {inputs}{weights}{product}
    out y : bf16[M, N] = rotated"""


def _query_key_value(h, width, scale, bias, norm, offset):
    """The inputs for query, key and value of `h`, and the statements up to `rotated`. H is the size of a head."""
    normed = """
    in  query_norm, key_norm : bf16[H]
    param head_eps = 1e-6""" if norm else ""
    head = f"""
    w = {'1 + ' if offset else ''}where(index(N) < Q, repeat(query_norm, N), repeat(key_norm, N))
    q = rsqrt(sum(z * z, N:H) / H + head_eps)
    n = where(index(N) < T, z * q * w, z)""" if norm else ""
    return f"""
    in  query : bf16[Q, {width}]
    in  key, value : bf16[E, {width}]
    {'in  bias : bf16[N]' if bias else ''}{normed}
    in  table : f32[P, H]
    in  positions : i32[M]""", f"""
    z = {h} @ stack(query, key, value).T{scale}{' + bias' if bias else ''}{head}
    rotated = rope({'n' if norm else 'z'}, table, positions, cols = T)"""


_RESIDUAL = """
    in  x : bf16[M, K]
    in  weight : bf16[N, K]
    in  residual : bf16[M, N]
    out y : bf16[M, N] = x @ weight.T + residual"""


def _residual_norm(offset):
    return f"""
    in  x : bf16[M, K]
    in  weight : bf16[N, K]
    in  residual : bf16[M, N]
    in  norm_weight : bf16[N]
    z = x @ weight.T + residual
    out y : bf16[M, N] = z
    out h : bf16[M, N] = z * {'(1 + norm_weight)' if offset else 'norm_weight'}
    out squares : f32[M, N/128] = sum(z * z, N:128)"""


_TAIL_INPUTS = """
    in  y : bf16[M, A]
    in  residual : bf16[M, D]
    in  output : bf16[D, A]
    in  norm_weight : bf16[D]
    in  gate, up : bf16[F, D]
    in  down : bf16[D, F]
    param eps = 1e-6"""


def _tail_statements(activation, offset):
    return f"""
    x1 = y @ output.T + residual
    h = rmsnorm(x1, {'1 + ' if offset else ''}norm_weight, eps)
    g = h @ gate.T
    u = h @ up.T
    a = {activation}(g) * u"""


def _tail(activation, offset):
    """A decoder layer after its attention: output projection, residual, norm, gated MLP, residual."""
    return f"""{_TAIL_INPUTS}{_tail_statements(activation, offset)}
    out x : bf16[M, D] = a @ down.T + x1"""


def _sandwich_tail(activation, offset):
    """The same with a norm behind the output projection and one behind the MLP too (Gemma2, Gemma3)."""
    norm = lambda x, weight: f"rmsnorm({x}, {'1 + ' if offset else ''}{weight}, eps)"  # noqa: E731
    return f"""{_TAIL_INPUTS}
    in  output_norm, down_norm : bf16[D]
    z = y @ output.T
    x1 = {norm("z", "output_norm")} + residual
    h = {norm("x1", "norm_weight")}
    g = h @ gate.T
    u = h @ up.T
    a = {activation}(g) * u
    d = a @ down.T
    out x : bf16[M, D] = {norm("d", "down_norm")} + x1"""


def _tail_rope(activation, offset, bias, norm):
    """From one layer's attention to the next one's: what `_tail` does, then the next norm, query, key, value and rotation."""
    next_norm = f"rmsnorm(x2, {'1 + ' if offset else ''}next_norm_weight, next_eps)"
    weights, product = _query_key_value("h2", "D", "", bias, norm, offset)
    return f"""
    axis N = Q + 2*E
    axis T = Q + E{_TAIL_INPUTS}
    in  next_norm_weight : bf16[D]
    param next_eps = 1e-6{weights}{_tail_statements(activation, offset)}
    x2 = a @ down.T + x1
    h2 = {next_norm}{product}
    out x : bf16[M, D] = x2
    out qkv : bf16[M, N] = rotated"""


def _texts():
    yield "linear_residual", _RESIDUAL
    for offset in ("", "1"):
        yield f"linear_residual_rmsnorm{offset}", _residual_norm(offset)
        for (gate, activation), prefix in itertools.product(_GATES.items(), ("", _RECOMPUTE)):
            name = f"{prefix}attention_output_{gate}{offset}"
            yield name, _tail(activation, offset)
            yield f"{name}_sandwich", _sandwich_tail(activation, offset)
            for bias in ("", "_bias"):
                yield f"{name}_rope{bias}", _tail_rope(activation, offset, bias, False)
                yield f"{name}_qknorm_rope{bias}", _tail_rope(activation, offset, bias, True)
    for form in _INPUTS:
        prefix = f"{form}_" if form else ""
        for bias in ("", "_bias"):
            yield f"{prefix}linear{bias}", _linear(form, bias)
            yield f"{prefix}linear_rope{bias}", _rope(form, bias, False)
            yield f"{prefix}linear_qknorm_rope{bias}", _rope(form, bias, True)
        for gate, activation in _GATES.items():
            yield f"{prefix}linear_{gate}", _gated(form, activation)


def _lines(body):
    return "\n".join(line for line in body.splitlines() if line.strip())


def _operator(name, body):
    columns = ("query", "key", "value") if "rope" in name else ()
    save = ("a",) if name.startswith("attention_output") else None
    return Operator(name, f"block {name} {{\n{_lines(body)}\n}}\n", "M", columns, save)


OPERATORS = {name: _operator(name, body) for name, body in _texts()}
