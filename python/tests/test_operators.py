"""Every operator, forward and backward, against torch in double."""

import pytest
import torch
import torch.nn.functional as F
from kit import compare

import coda
import coda.torch as C
from coda.torch import _order, _sequence
from coda.torch._blocks import OPERATORS
from coda.torch._launch import device_key
from coda.torch._order import products_gathered, sets_of_products

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# leading dimensions, K, N: ragged, a single row, more than one tile
SHAPES = [((37,), 72, 104), ((1,), 64, 128), ((2, 3, 5), 136, 200), ((130,), 256, 264)]
EPS = 1e-5


def normal(device, dtype, *shape):
    return (torch.randn(*shape, device=device) / max(1, shape[-1]) ** 0.5).to(dtype)


def norm(x, g, offset=0):
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * (g + offset)


def rotate(x, table, positions):
    """x: [..., heads, D]"""
    cos, sin = table[positions.long()].unsqueeze(-2).to(x.dtype).chunk(2, -1)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.fixture(params=DTYPES, ids=lambda d: str(d).split(".")[1])
def dtype(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear(device, dtype, shape, bias):
    lead, k, n = shape
    tensors = [normal(device, dtype, *lead, k) * 8, normal(device, dtype, n, k)]
    tensors += [normal(device, dtype, n)] if bias else []
    compare(C.linear, F.linear, tensors)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_rmsnorm_linear(device, dtype, shape, offset, bias):
    lead, k, n = shape
    tensors = [torch.randn(*lead, k, device=device).to(dtype), torch.rand(k, device=device).to(dtype),
               normal(device, dtype, n, k)] + ([normal(device, dtype, n)] if bias else [])

    def theirs(x, g, w, b=None):
        return F.linear(norm(x, g, offset).to(x.dtype), w, b)
    compare(lambda *t: C.rmsnorm_linear(*t, eps=EPS, norm_offset=offset), theirs, tensors)


@pytest.mark.parametrize("form", ["plain", "norm", "deferred"])
@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_gated(device, dtype, form, activation):
    k, n = 136, 200
    ours = getattr(C, f"linear_{activation}")
    act = F.silu if activation == "swiglu" else lambda z: F.gelu(z, approximate="tanh")
    x, g, residual = (torch.randn(2, 9, k, device=device).to(dtype), torch.rand(k, device=device).to(dtype) + 0.5,
                      torch.randn(2, 9, k, device=device).to(dtype))
    gate, up, square = (normal(device, dtype, rows, k) for rows in (n, n, k))
    mlp = lambda h, gate, up: act(F.linear(h, gate)) * F.linear(h, up)  # noqa: E731
    if form == "plain":
        compare(ours, mlp, [x, gate, up])
    elif form == "norm":
        compare(lambda x, g, *w: ours(x, *w, norm_weight=g, eps=EPS),
                lambda x, g, *w: mlp(norm(x, g).to(x.dtype), *w), [x, g, gate, up])
    else:
        def chained(x, residual, square, g, gate, up):
            y, normed = C.linear_residual_rmsnorm(x, square, residual, g, eps=EPS)
            return y, ours(normed, gate, up)

        def theirs(x, residual, square, g, gate, up):
            y = F.linear(x, square) + residual
            return y, mlp(norm(y, g).to(x.dtype), gate, up)
        compare(chained, theirs, [x, residual, square, g, gate, up])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_norm_of_an_f32_residual_stream_before_16_bit_weights(device, kind, offset):
    x, g = torch.randn(2, 9, 136, device=device), torch.rand(136, device=device)
    gate, up = normal(device, kind, 200, 136), normal(device, kind, 200, 136)

    def theirs(x, g, gate, up):
        h = norm(x, g, offset).to(gate.dtype)
        return F.silu(F.linear(h, gate)) * F.linear(h, up)
    compare(lambda x, g, *w: C.linear_swiglu(x, *w, norm_weight=g, norm_offset=offset, eps=EPS), theirs, [x, g, gate, up])


@pytest.mark.parametrize("offset", [0, 1])
def test_linear_residual_and_its_norm(device, dtype, offset):
    x, w, r, g = (torch.randn(5, 7, 72, device=device).to(dtype), normal(device, dtype, 136, 72),
                  torch.randn(5, 7, 136, device=device).to(dtype), torch.rand(136, device=device).to(dtype))
    compare(C.linear_residual, lambda x, w, r: F.linear(x, w) + r, [x, w, r])

    def ours(x, w, r, g):
        y, normed = C.linear_residual_rmsnorm(x, w, r, g, eps=EPS, norm_offset=offset)
        return y, normed.tensor()

    def theirs(x, w, r, g):
        y = F.linear(x, w) + r
        return y, norm(y, g, offset).to(x.dtype)
    compare(ours, theirs, [x, w, r, g])


@pytest.mark.parametrize("form", ["plain", "norm", "deferred"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("heads", [False, True], ids=["rope", "qknorm_rope"])
@pytest.mark.parametrize("d", [16, 64], ids=["narrow", "whole_runs"])  # of 128 columns: gradients of q, k, v are not joined
def test_query_key_value(device, dtype, form, bias, heads, d):
    k, q, e = 72, 4, 2
    lead = (2, 11)
    table = C.rope_table(32, d, device=device)
    positions = torch.arange(3, 3 + lead[1], device=device)
    x, g = torch.randn(*lead, k, device=device).to(dtype), torch.rand(k, device=device).to(dtype) + 0.5
    weights = [normal(device, dtype, n * d, k) for n in (q, e, e)]
    extra = [normal(device, dtype, (q + 2 * e) * d)] if bias else []
    head = [torch.rand(d, device=device).to(dtype) + 0.5 for _ in range(2)] if heads else []
    residual, square = torch.randn(*lead, k, device=device).to(dtype), normal(device, dtype, k, k)

    def call(x, weights, rest, **kwargs):
        rest = list(rest)
        if bias:
            kwargs["bias"] = rest.pop(0)
        if heads:
            return C.linear_qknorm_rope(x, *weights, *rest, table, positions, head_eps=EPS, **kwargs)
        return C.linear_rope(x, *weights, table, positions, **kwargs)

    def theirs(h, weights, rest):
        rest = list(rest)
        z = F.linear(h, torch.cat(list(weights)), rest.pop(0) if bias else None)
        parts = [t.unflatten(-1, (-1, d)) for t in z.split([q * d, e * d, e * d], -1)]
        if heads:
            parts[0], parts[1] = (norm(t, w).to(h.dtype) for t, w in zip(parts, rest))
        return [rotate(parts[0], table, positions).flatten(-2), rotate(parts[1], table, positions).flatten(-2),
                parts[2].flatten(-2)]

    if form == "plain":
        compare(lambda x, *t: call(x, t[:3], t[3:]), lambda x, *t: theirs(x, t[:3], t[3:]), [x, *weights, *extra, *head])
    elif form == "norm":
        compare(lambda x, g, *t: call(x, t[:3], t[3:], norm_weight=g, eps=EPS),
                lambda x, g, *t: theirs(norm(x, g).to(x.dtype), t[:3], t[3:]), [x, g, *weights, *extra, *head])
    else:
        def chained(x, r, s, g, *t):
            y, normed = C.linear_residual_rmsnorm(x, s, r, g, eps=EPS)
            return [y, *call(normed, t[:3], t[3:])]

        def plain(x, r, s, g, *t):
            y = F.linear(x, s) + r
            return [y, *theirs(norm(y, g).to(x.dtype), t[:3], t[3:])]
        compare(chained, plain, [x, residual, square, g, *weights, *extra, *head])


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("activation,recompute", [("silu", False), ("silu", True), ("gelu_tanh", False)])
def test_attention_output_mlp(device, dtype, offset, activation, recompute):
    a, d, f = 72, 136, 200
    act = F.silu if activation == "silu" else lambda z: F.gelu(z, approximate="tanh")
    tensors = [torch.randn(2, 9, a, device=device).to(dtype), torch.randn(2, 9, d, device=device).to(dtype),
               normal(device, dtype, d, a), torch.rand(d, device=device).to(dtype), normal(device, dtype, f, d),
               normal(device, dtype, f, d), normal(device, dtype, d, f)]

    def theirs(y, r, wo, g, wg, wu, wd):
        x = F.linear(y, wo) + r
        h = norm(x, g, offset).to(x.dtype)
        return F.linear(act(F.linear(h, wg)) * F.linear(h, wu), wd) + x
    compare(lambda *t: C.attention_output_mlp(*t, activation=activation, norm_offset=offset, eps=EPS, recompute=recompute),
            theirs, tensors)


@pytest.mark.parametrize("offset,activation,recompute", [(1, "gelu_tanh", False), (0, "silu", True)])
def test_attention_output_mlp_with_norms_behind_its_products(device, dtype, offset, activation, recompute):
    a, d, f = 72, 136, 200
    act = F.silu if activation == "silu" else lambda z: F.gelu(z, approximate="tanh")
    tensors = [torch.randn(2, 9, a, device=device).to(dtype), torch.randn(2, 9, d, device=device).to(dtype),
               normal(device, dtype, d, a), torch.rand(d, device=device).to(dtype), normal(device, dtype, f, d),
               normal(device, dtype, f, d), normal(device, dtype, d, f), *(torch.rand(d, device=device).to(dtype) for _ in "ab")]

    def theirs(y, r, wo, g, wg, wu, wd, go, gd):
        x = norm(F.linear(y, wo), go, offset).to(r.dtype) + r
        h = norm(x, g, offset).to(x.dtype)
        return norm(F.linear(act(F.linear(h, wg)) * F.linear(h, wu), wd), gd, offset).to(x.dtype) + x
    compare(lambda *t: C.attention_output_mlp(*t[:7], output_norm=t[7], down_norm=t[8], activation=activation,
                                              norm_offset=offset, eps=EPS, recompute=recompute), theirs, tensors)


@pytest.mark.parametrize("offset,activation,recompute", [(0, "silu", False), (1, "gelu_tanh", False), (1, "silu", True)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("heads", [False, True], ids=["rope", "qknorm_rope"])
@pytest.mark.parametrize("hd", [16, 64], ids=["narrow", "whole_runs"])
def test_attention_output_mlp_rope(device, dtype, offset, activation, recompute, bias, heads, hd):
    a, d, f, q, e, lead = 72, 136, 200, 4, 2, (2, 9)
    act = F.silu if activation == "silu" else lambda z: F.gelu(z, approximate="tanh")
    table, positions = C.rope_table(32, hd, device=device), torch.arange(3, 3 + lead[1], device=device)
    tensors = [torch.randn(*lead, a, device=device).to(dtype), torch.randn(*lead, d, device=device).to(dtype),
               normal(device, dtype, d, a), torch.rand(d, device=device).to(dtype), normal(device, dtype, f, d),
               normal(device, dtype, f, d), normal(device, dtype, d, f), torch.rand(d, device=device).to(dtype),
               *(normal(device, dtype, n * hd, d) for n in (q, e, e))]
    if bias:
        tensors.append(normal(device, dtype, (q + 2 * e) * hd))
    if heads:
        tensors += [torch.rand(hd, device=device).to(dtype) + 0.5 for _ in range(2)]

    def ours(*t):
        t = list(t)
        norms = {"key_norm": t.pop(), "query_norm": t.pop()} if heads else {}
        return C.attention_output_mlp_rope(*t[:11], table, positions, bias=t[11] if bias else None, activation=activation,
                                           norm_offset=offset, eps=EPS, head_eps=EPS, recompute=recompute, **norms)

    def theirs(y, r, wo, g, wg, wu, wd, g1, wq, wk, wv, *rest):
        x = F.linear(y, wo) + r
        h = norm(x, g, offset).to(x.dtype)
        x = F.linear(act(F.linear(h, wg)) * F.linear(h, wu), wd) + x
        rest = list(rest)
        z = F.linear(norm(x, g1, offset).to(x.dtype), torch.cat([wq, wk, wv]), rest.pop(0) if bias else None)
        parts = [t.unflatten(-1, (-1, hd)) for t in z.split([q * hd, e * hd, e * hd], -1)]
        if heads:
            parts[0], parts[1] = (norm(t, w, offset).to(x.dtype) for t, w in zip(parts, rest))
        return [x, *(rotate(t, table, positions).flatten(-2) for t in parts[:2]), parts[2].flatten(-2)]
    compare(ours, theirs, tensors)


def test_a_norm_of_what_cancels_is_a_number(device):
    """The sum of squares behind an output norm is added up from its terms, whose rounding must not make it negative."""
    d, f = 256, 64
    y, wo, g = torch.randn(64, d, device=device), normal(device, torch.float32, d, d), 300 * torch.rand(d, device=device)
    residual = -norm(F.linear(y, wo), g) + 1e-3 * torch.randn(64, d, device=device)
    one, gate, up, down = torch.ones(d, device=device), *(normal(device, torch.float32, *s) for s in ((f, d), (f, d), (d, f)))
    x = C.attention_output_mlp(y, residual, wo, one, gate, up, down, output_norm=g, down_norm=one, eps=EPS)
    assert x.isfinite().all()


def test_norms_of_heads_whose_weights_are_stored_minus_1(device, dtype):
    table, d = C.rope_table(32, 16, device=device), 16
    tensors = [torch.randn(2, 9, 72, device=device).to(dtype), torch.rand(72, device=device).to(dtype),
               *(normal(device, dtype, n * d, 72) for n in (4, 2, 2)), *(torch.rand(d, device=device).to(dtype) for _ in "qk")]

    def theirs(x, g, wq, wk, wv, gq, gk):
        q, k, v = F.linear(norm(x, g, 1).to(x.dtype), torch.cat([wq, wk, wv])).split([4 * d, 2 * d, 2 * d], -1)
        q, k = (norm(t.unflatten(-1, (-1, d)), w, 1).to(x.dtype) for t, w in ((q, gq), (k, gk)))
        return *(rotate(t, table, torch.arange(9, device=device)).flatten(-2) for t in (q, k)), v
    compare(lambda x, g, *t: C.linear_qknorm_rope(x, *t, table, norm_weight=g, norm_offset=1, eps=EPS, head_eps=EPS), theirs,
            tensors)


def test_gradients_agree_with_central_differences_of_the_reference():
    """gradcheck through the interpreter in double; its inputs and outputs are f32, hence the step and the tolerance."""
    torch.manual_seed(0)
    x, g, gate, up = (torch.randn(*s).requires_grad_() for s in ((3, 8), (8,), (5, 8), (5, 8)))
    with C.cpu_device("ref"):
        torch.autograd.gradcheck(lambda x, g, gate, up: C.linear_swiglu(x, gate, up, norm_weight=g, eps=EPS),
                                 (x, g, gate, up), eps=1e-2, atol=2e-3, rtol=2e-3)


def test_results_have_the_same_bits_every_time(device):
    x, gate, up = (normal(device, torch.bfloat16, *s).requires_grad_() for s in ((300, 200), (264, 200), (264, 200)))
    runs = []
    for _ in range(2):
        y = C.linear_swiglu(x, gate, up)
        runs.append([y, *torch.autograd.grad(y, (x, gate, up), torch.ones_like(y))])
    assert all(torch.equal(a, b) for a, b in zip(*runs))


@pytest.mark.parametrize("name,sets", [("linear_swiglu", ["dgate dup"]), ("linear", []), ("linear_rope", []),
                                       ("attention_output_swiglu", ["ddown doutput dgate dup"]),
                                       ("recompute_attention_output_swiglu", ["doutput dgate dup"])])
def test_weight_gradients_side_by_side_are_sets_of_one_launch(name, sets):
    operator = OPERATORS[name]
    floats = [o.dtype == "bf16" for o in operator.inputs]
    programs = operator.variant("bf16").backward(sum(1 << i for i, f in enumerate(floats) if f)).sequence.gathered
    assert [" ".join(programs[i].operands[-1].name for i in places)
            for places in sets_of_products(programs) if len(places) > 1] == sets


def test_products_are_gathered_where_what_they_read_need_not_wait():
    module = coda.Module.parse("""
program first { in a : bf16[M, N]; in b : bf16[M, K]; out c : bf16[N, K] = a.T @ b }
program made { in a : bf16[M, N]; in w : bf16[L, N]; out d : bf16[M, L] = a @ w.T }
program second { in d : bf16[M, L]; in b : bf16[M, K]; out e : bf16[L, K] = d.T @ b }
program reads { in e : bf16[L, K]; in d : bf16[M, L]; out f : bf16[M, K] = d @ e }
program third { in f : bf16[M, K]; in d : bf16[M, L]; out g : bf16[K, L] = f.T @ d }
""".replace(";", "\n").replace("{ ", "{\n").replace(" }", "\n}"), "trial")
    order = lambda kept, most: [p.name for p in products_gathered(list(module), kept, most)]  # noqa: E731
    assert order({"a", "b"}, 0) == ["made", "first", "second", "reads", "third"]  # a later one reads e: second stays
    assert order({"b"}, 0) == ["first", "made", "second", "reads", "third"]
    assert order({"b"}, 1) == ["made", "first", "second", "reads", "third"]


def test_recompute_keeps_less(device):
    d, f = 64, 128
    tensors = [torch.randn(8, d), torch.randn(8, d), torch.randn(d, d), torch.ones(d), torch.randn(f, d), torch.randn(f, d),
               torch.randn(d, f)]
    tensors = [t.to(device).requires_grad_() for t in tensors]
    results = [C.attention_output_mlp(*tensors, recompute=r) for r in (False, True)]  # what is kept goes with them
    kept = [sum(t.numel() for t in x.grad_fn.saved_tensors) for x in results]
    assert kept[0] - kept[1] == 8 * f


def test_sets_have_the_bits_of_single_launches(device, monkeypatch):
    programs = list(OPERATORS["linear_swiglu"].derived.backward)
    made = {o.name for p in programs for o in p.operands if o.role != "in"}
    operands = list({o.name: o for p in programs for o in p.operands if o.name not in made}.values())
    sizes = {"M": 300, "K": 200, "N": 264}
    tensors = [normal(device, torch.bfloat16, *(sizes[d] for d in o.dims)) for o in operands]
    runs = []
    for most in (1, 8):
        monkeypatch.setattr(_order, "MOST_SETS", most)
        sequence = _sequence.Sequence("trial", programs, operands, ["dx", "dgate", "dup"], [])
        runs.append(sequence.run(device_key(tensors[0]), *tensors))
        assert len(sequence.kernels) == (4 if most == 1 else 3)
    assert all(torch.equal(a, b) for a, b in zip(*runs))


def test_transposed_expanded_and_strided_inputs_give_what_contiguous_ones_give(device):
    x, w = torch.randn(8, 24, device=device), torch.randn(16, 24, device=device)
    expected = C.linear(x, w)
    assert torch.equal(C.linear(x.T.contiguous().T, w.T.contiguous().T), expected)
    wide = torch.randn(8, 40, device=device)
    wide[:, 5:29] = x
    assert torch.equal(C.linear(wide[:, 5:29], w), expected)
    one = torch.randn(1, 24, device=device).expand(8, 24)
    assert torch.equal(C.linear(one, w), C.linear(one.contiguous(), w))
    leaf = x.clone().requires_grad_()
    C.linear(leaf, w).sum().backward()  # the gradient arrives expanded
    torch.testing.assert_close(leaf.grad, w.sum(0).expand_as(x), rtol=1e-5, atol=1e-5)


def test_an_empty_batch_gives_empty_results_and_zero_gradients(device):
    x = torch.randn(0, 24, device=device, requires_grad=True)
    gate, up = (torch.randn(16, 24, device=device, requires_grad=True) for _ in range(2))
    y = C.linear_swiglu(x, gate, up)
    assert y.shape == (0, 16)
    y.sum().backward()
    assert x.grad.shape == (0, 24) and gate.grad.shape == gate.shape and not gate.grad.any()


def test_gradients_of_query_key_and_value_may_be_strided_or_missing(device):
    table, x = C.rope_table(32, 64, device=device), torch.randn(2, 11, 72, device=device)
    weights = [torch.randn(n, 72, device=device) for n in (256, 128, 128)]

    def gradients(use):
        inputs = [t.detach().clone().requires_grad_() for t in (x, *weights)]
        q, k, v = C.linear_rope(*inputs, table)
        use(q, k, v).backward()
        return [t.grad for t in inputs]
    r = torch.randn(2, 4, 11, 64, device=device)
    strided = gradients(lambda q, k, v: (q.unflatten(-1, (4, 64)).transpose(1, 2) * r).sum() + 0 * (k.sum() + v.sum()))
    missing = gradients(lambda q, k, v: (q * r.transpose(1, 2).flatten(-2)).sum())
    for a, b in zip(strided, missing):
        torch.testing.assert_close(a, b)
    assert missing[1].any() and not missing[2].any() and not missing[3].any()


@pytest.mark.parametrize("used", range(1, 16))
def test_a_layer_with_any_of_its_results_used(device, used):
    """The residual stream, query, key, value: what nothing uses gives no gradient."""
    table, d = C.rope_table(32, 64, device=device), 128
    shapes = [(2, 5, d), (2, 5, d), (d, d), (d,), (96, d), (96, d), (d, 96), (d,), (256, d), (128, d), (128, d)]
    tensors = [torch.randn(*s, device=device) / (s[-1] ** 0.5 if len(s) == 2 else 1) for s in shapes]
    used = [i for i in range(4) if used >> i & 1]

    def apart(*t):
        x = C.attention_output_mlp(*t[:7])
        return x, *C.linear_rope(x, *t[8:], table, norm_weight=t[7])
    runs = []
    for function in (apart, lambda *t: C.attention_output_mlp_rope(*t, table)):
        inputs = [t.detach().clone().requires_grad_() for t in tensors]
        made = [function(*inputs)[i] for i in used]
        sum((m * torch.linspace(0, 1, m.numel(), device=device).view_as(m)).sum() for m in made).backward()
        runs.append([torch.zeros_like(t) if t.grad is None else t.grad for t in inputs])
    for a, b in zip(*runs):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
