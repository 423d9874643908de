"""The operators inside torch's machinery: opcheck, compile, autocast, checkpointing, gradients only where asked."""

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from kit import compare
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.checkpoint import checkpoint

import coda.torch as C
from coda.torch import _sequence
from coda.torch._blocks import OPERATORS

SIZES = {"M": 6, "K": 32, "N": 48, "Q": 32, "E": 16, "D": 32, "H": 16, "P": 9, "A": 24, "F": 40}


def arguments(name, requires_grad=True):
    """Operands of an operator at small sizes."""
    operator, made = OPERATORS[name], []
    sizes = dict(SIZES, N=64 if "rope" in name else 48)
    for o in operator.inputs:
        shape = [-(-sizes[d.split("/")[0]] // int(d.split("/")[1])) if "/" in d else sizes[d] for d in o.dims]
        if o.dtype == "i32":
            made.append(torch.arange(shape[0], dtype=torch.int32))
        else:
            t = torch.rand(shape) if o.name in ("squares", "table") else torch.randn(shape)
            made.append(t.requires_grad_(requires_grad and o.name != "table"))
    return (*made, *operator.block.parameters.values())


@pytest.mark.parametrize("name", list(OPERATORS))
def test_opcheck(name):
    torch.manual_seed(0)
    torch.library.opcheck(getattr(torch.ops.coda, name).default, arguments(name))


def test_opcheck_of_cross_entropy():
    x, w, t = torch.randn(5, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True), torch.randint(0, 40, (5,))
    for reduction, recompute in ((1, False), (2, True), (0, True)):
        torch.library.opcheck(torch.ops.coda.linear_cross_entropy.default,
                              (x, w, t.int(), None, reduction, -100, 0.1, 0.0, 0.0, 2, recompute, True))


class Small(torch.nn.Module):
    """Every kind of operator, one after the other."""

    def __init__(self, device="cpu", dtype=torch.float32):
        super().__init__()
        made = {"device": device, "dtype": dtype}
        self.block = C.TransformerBlock(32, 4, 72, 2, qk_norm=True, **made)
        self.norm = torch.nn.Parameter(torch.ones(32, **made))
        self.gate = torch.nn.Linear(32, 40, **made)
        self.up = torch.nn.Linear(32, 40, **made)
        self.down = torch.nn.Linear(40, 32, **made)
        self.head = torch.nn.Linear(32, 50, bias=False, **made)
        self.register_buffer("table", C.rope_table(16, 8, device=device))

    def forward(self, x, target):
        x = self.block(x, self.table)
        y = C.linear_geglu(x, self.gate.weight, self.up.weight, norm_weight=self.norm)
        x, h = C.linear_residual_rmsnorm(y, self.down.weight, x, self.norm)
        x = x + C.linear(C.linear_swiglu(h, self.gate.weight, self.up.weight), self.down.weight, self.down.bias)
        return C.linear_cross_entropy(x, self.head.weight, target)


def small(device):
    torch.manual_seed(0)
    return Small(device), torch.randn(2, 7, 32, device=device), torch.randint(0, 50, (2, 7), device=device)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_compile_with_fullgraph_gives_the_same(device):
    model, x, target = small(device)
    loss = model(x, target)
    expected = gradients(model, loss)
    compiled = torch.compile(model, fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")
    again = compiled(x, target)
    torch.testing.assert_close(again, loss)
    for a, b in zip(gradients(model, again), expected):
        torch.testing.assert_close(a, b)


def test_an_operator_whose_first_call_is_compiled():
    code = """if True:
        import torch, coda.torch as C
        x, g, w, table = torch.randn(2, 5, 32), torch.ones(32), torch.nn.Parameter(torch.randn(32, 32)), C.rope_table(8, 16)
        def f(x):
            y, h = C.linear_residual_rmsnorm(x, w, x, g)
            q, k, v = C.linear_rope(h, w, w, w, table)
            return C.linear_geglu(C.attention_output_mlp(q, y, w, g, w, w, w), w, w, norm_weight=g)
        y = torch.compile(f, fullgraph=True, backend="aot_eager")(x)
        y.sum().backward()
        torch.testing.assert_close(y, f(x))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(C.__file__)))})
    assert done.returncode == 0, done.stderr


def test_compile_with_dynamic_shapes_does_not_recompile(device):
    gate, up = torch.randn(40, 32, device=device), torch.randn(40, 32, device=device)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: C.linear_swiglu(x, gate, up), fullgraph=True, dynamic=True, backend=counter)
    for rows in (5, 9, 200):
        x = torch.randn(rows, 32, device=device)
        torch.testing.assert_close(compiled(x), C.linear_swiglu(x, gate, up))
    assert counter.frame_count == 1


def test_autocast_computes_in_its_type_and_gives_gradients_in_the_parameters(device):
    model, x, target = small(device)
    with torch.autocast(device.type, torch.bfloat16):
        y = C.linear_swiglu(x, model.gate.weight, model.up.weight, norm_weight=model.norm)
        loss = model(x, target)
    assert y.dtype is torch.bfloat16 and loss.dtype is torch.float32
    for g in gradients(model, loss):
        assert g.dtype is torch.float32
    torch.testing.assert_close(loss, model(x, target), rtol=2e-2, atol=2e-2)


def test_under_autocast_an_f32_residual_stream_stays_f32(device):
    """Results and gradients beside f32: no error larger than that of torch's operators in the same place."""
    x, g, d, table = torch.randn(2, 9, 32, device=device), torch.rand(32, device=device), 32, C.rope_table(16, 16, device=device)
    w, gate, up, down = (torch.randn(*s, device=device) / 6 for s in ((d, d), (d, d), (d, d), (d, d)))
    norm = lambda x, g: F.rms_norm(x.float(), (d,), g, 1e-6)  # noqa: E731

    def mlp(x, g, gate, up, down):
        h = norm(x, g)
        return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
    cases = {
        "linear_residual": (lambda x, g, w, *_: C.linear_residual(x, w, x), lambda x, g, w, *_: x + F.linear(x, w)),
        "linear_residual_rmsnorm": (lambda x, g, w, *_: (lambda y, h: y + C.linear(h, w))(*C.linear_residual_rmsnorm(x, w, x, g)),
                                    lambda x, g, w, *_: (lambda y: y + F.linear(norm(y, g), w))(x + F.linear(x, w))),
        "attention_output_mlp": (lambda x, g, w, *m: C.attention_output_mlp(x, x, w, g, *m),
                                 lambda x, g, w, *m: mlp(x + F.linear(x, w), g, *m)),
        "with norms behind": (lambda x, g, w, *m: C.attention_output_mlp(x, x, w, g, *m, output_norm=g, down_norm=g),
                              lambda x, g, w, gate, up, down: (lambda x: x + norm(F.linear(
                                  F.silu(F.linear(norm(x, g), gate)) * F.linear(norm(x, g), up), down), g).to(x.dtype))(
                                      x + norm(F.linear(x, w), g).to(x.dtype))),
        "attention_output_mlp_rope": (lambda x, g, w, *m: C.attention_output_mlp_rope(x, x, w, g, *m, g, w, w, w, table)[0],
                                      lambda x, g, w, *m: mlp(x + F.linear(x, w), g, *m)),
    }
    for name, functions in cases.items():
        errors, exact = [], None
        for function, enabled in ((functions[1], False), (functions[1], True), (functions[0], True)):
            leaves = [t.clone().requires_grad_() for t in (x, g, w, gate, up, down)]
            with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
                y = function(*leaves)
            assert y.dtype is torch.float32, name
            y.square().sum().backward()
            made = [y.detach()] + [t.grad for t in leaves if t.grad is not None]
            exact = exact or made
            errors.append(sum(((a - b).norm() / b.norm()).item() for a, b in zip(made, exact, strict=True)))
        assert errors[2] < 1.2 * errors[1], (name, errors)


def test_in_inference_mode_results_are_inference_tensors(device):
    x, gate, up = (torch.randn(*s, device=device) for s in ((3, 32), (40, 32), (40, 32)))
    with torch.inference_mode():
        y = C.linear_swiglu(x, gate, up)
        assert y.is_inference() and torch.equal(y, C.linear_swiglu(x, gate, up))
    assert not C.linear_swiglu(x, gate, up).is_inference()


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4)])
def test_memory_is_dense_and_of_the_device(device, shape):
    for empty in (_sequence._empty_cpu, _sequence._empty_on(device.index or 0 if device.type == "cuda" else "cpu")):
        made = empty(shape, _sequence._dense_strides(shape), torch.bfloat16)
        assert made.shape == shape and made.dtype is torch.bfloat16 and made.is_contiguous()
    assert made.device.type == device.type


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_bits(device, reentrant):
    model, x, target = small(device)
    x.requires_grad_()
    expected = gradients(model, model(x, target))
    again = gradients(model, checkpoint(model, x, target, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(again, expected))


def test_gradients_that_nothing_asks_for_are_not_computed(device):
    x, gate, up = (torch.randn(*s, device=device) for s in ((9, 32), (40, 32), (40, 32)))
    runs = []
    for mask in range(1, 8):
        inputs = [t.clone().requires_grad_(bool(mask >> i & 1)) for i, t in enumerate((x, gate, up))]
        C.linear_swiglu(*inputs).square().sum().backward()
        runs.append([t.grad for t in inputs])
        assert [t.grad is not None for t in inputs] == [bool(mask >> i & 1) for i in range(3)]
    for run in runs:
        for a, b in zip(run, runs[-1]):
            assert a is None or torch.equal(a, b)


def test_the_backward_of_frozen_weights_runs_fewer_programs():
    variant = OPERATORS["linear_swiglu"].variant("f32")
    assert len(variant.backward(0b001).sequence.programs) < len(variant.backward(0b111).sequence.programs)


@pytest.mark.parametrize("mask", [0b00000001, 0b00000100, 0b00010000])
def test_query_key_value_with_one_trained_weight(device, mask):
    table = C.rope_table(8, 16, device=device)
    tensors = [torch.randn(*s, device=device) for s in ((8, 32), (32,), (64, 32), (32, 32), (32, 32))]
    tensors = [t.requires_grad_(bool(mask >> i & 1)) for i, t in enumerate(tensors)]
    x, g, q, k, v = tensors
    sum(t.square().sum() for t in C.linear_rope(x, q, k, v, table, norm_weight=g)).backward()
    assert [t.grad is not None for t in tensors] == [bool(mask >> i & 1) for i in range(5)]


def test_a_second_derivative_is_refused(device):
    x = torch.randn(4, 8, device=device, requires_grad=True)
    w = torch.randn(8, 8, device=device, requires_grad=True)
    (g,) = torch.autograd.grad(C.linear(x, w).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        g.sum().backward()


def double_backward(device, **options):
    x, w = (torch.randn(*s, device=device, requires_grad=True) for s in ((4, 8), (9, 8)))
    loss = C.linear_cross_entropy(x, w, torch.arange(4, device=device), **options).sum()
    torch.autograd.grad(loss, (x, w), create_graph=True)[0].square().sum().backward()


def dual(x, w):
    with torch.autograd.forward_ad.dual_level():
        return C.linear(torch.autograd.forward_ad.make_dual(x, x), w)


UNSERVED = {
    "jvp": lambda x, w: torch.func.jvp(lambda x: C.linear(x, w), (x,), (x,)),
    "dual numbers": dual,
    "jvp of the loss": lambda x, w: torch.func.jvp(
        lambda x: C.linear_cross_entropy(x, w, torch.arange(4, device=x.device)), (x,), (x,)),
    "func.grad": lambda x, w: torch.func.grad(lambda x: C.linear_swiglu(x, w, w).sum())(x),
    "func.grad of the loss": lambda x, w: torch.func.grad(
        lambda x: C.linear_cross_entropy(x, w, torch.arange(4, device=x.device)))(x),
    "a second derivative of the loss": lambda x, w: double_backward(x.device),
    "of the loss computed again": lambda x, w: double_backward(x.device, recompute=True),
    "of the loss of every row": lambda x, w: double_backward(x.device, reduction="none"),
}


@pytest.mark.parametrize("way", list(UNSERVED))
def test_ways_to_differentiate_that_nothing_serves_are_refused(device, way):
    x, w = torch.randn(4, 8, device=device), torch.randn(9, 8, device=device)
    for _ in range(2):
        C.linear(x, w), C.linear_swiglu(x, w, w)  # a call that was seen before
        with pytest.raises(NotImplementedError, match="coda::.*(derivative|second)"):
            UNSERVED[way](x, w)


def test_a_vector_or_a_residual_trained_alone(device):
    x, w, b, r = (torch.randn(*s, device=device) for s in ((4, 8), (6, 8), (6,), (4, 6)))
    for function, trained in ((lambda: C.linear(x, w, b), b), (lambda: C.linear_residual(x, w, r), r)):
        trained.requires_grad_()
        function().sum().backward()
        assert torch.equal(trained.grad, torch.full_like(trained, 4.0 if trained is b else 1.0))


def test_views_that_torch_has_yet_to_negate_and_tensors_without_memory(device):
    x, w = torch.randn(4, 8, device=device), torch.randn(6, 8, device=device)
    for _ in range(2):
        expected = C.linear(-x, w)
        assert torch.equal(C.linear(torch._neg_view(x), w), expected)
        assert torch.equal(C.linear(x, torch._neg_view(w)), expected)
        made = C.linear_cross_entropy(C.linear(x.to("meta"), w.to("meta")), torch.empty(9, 6, device="meta"),
                                      torch.empty(4, dtype=torch.long, device="meta"))
        assert made.is_meta and made.shape == ()


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_records_the_operator(device):
    w = torch.randn(6, 8, device=device)
    for _ in range(2):
        traced = torch.jit.trace(lambda x: C.linear(x, w), (torch.randn(4, 8, device=device),))
        x = torch.randn(4, 8, device=device)
        assert torch.equal(traced(x), C.linear(x, w)) and "coda::linear" in str(traced.graph)


def test_a_call_that_was_seen_before_sees_what_changed(device):
    x, w = torch.randn(8, 8, device=device), torch.nn.Parameter(torch.randn(8, 8, device=device))
    for _ in range(3):
        expected = C.linear(x, w)
    torch.testing.assert_close(C.linear(x, x), x @ x.T)
    with torch.autocast(device.type, torch.bfloat16):
        assert C.linear(x, w).dtype is torch.bfloat16
    with torch.inference_mode():
        assert torch.equal(C.linear(x, w), expected)
    with torch.no_grad():
        assert not C.linear(x, w).requires_grad
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(C.linear(x, w), FakeTensor)
    assert C.linear(x.double().float(), w).requires_grad and torch.equal(C.linear(x, w), expected)
    w.requires_grad_(False)
    assert not C.linear(x, w).requires_grad
    w.data = w.data.T
    torch.testing.assert_close(C.linear(x, w), x @ w.T)
    w.data = w.data[:, :4]
    with pytest.raises(ValueError, match="shape"):
        C.linear(x, w)
    w.data = torch.randn(8, 8, device=device, dtype=torch.float64)
    with pytest.raises(TypeError, match="float64"):
        C.linear(x, w)


def test_no_grad_keeps_nothing(device):
    x, gate, up = (torch.randn(*s, device=device, requires_grad=True) for s in ((9, 32), (40, 32), (40, 32)))
    with torch.no_grad():
        assert not C.linear_swiglu(x, gate, up).requires_grad
    with torch.inference_mode():
        C.linear_swiglu(x, gate, up)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_replays_forward_and_backward():
    x, gate, up = (torch.randn(*s, device="cuda").bfloat16().requires_grad_() for s in ((64, 32), (40, 32), (40, 32)))
    d = torch.randn(64, 40, device="cuda").bfloat16()

    def run():
        y = C.linear_swiglu(x, gate, up)
        return [y, *torch.autograd.grad(y, (x, gate, up), d)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()  # compiles
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, run()))


# ---------------------------------------------------------------- programs of one's own

GATED = """
program scaled_gate {
    in  x : bf16[M, K]
    in  w : bf16[N, K]
    in  b : bf16[N]
    in  s : f32[M]
    param slope = 2
    z = x @ w.T + b
    out y : bf16[M, N] = z * sigmoid(slope * z) * s
}"""


def test_a_program_of_ones_own(device):
    f = C.program(GATED)
    assert f is C.program(GATED) and f.inputs == ("x", "w", "b", "s") and f.parameters == {"slope": 2.0}
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [torch.randn(9, 32, device=device).to(dtype), (torch.randn(40, 32, device=device) / 6).to(dtype),
                   torch.randn(40, device=device).to(dtype), torch.rand(9, device=device)]

        def theirs(x, w, b, s):
            z = F.linear(x, w, b)
            return (z * torch.sigmoid(1.5 * z) * s[:, None]).to(x.dtype)
        compare(lambda *t: f(*t, slope=1.5), theirs, tensors)
    torch.library.opcheck(f._operator.op, (*(t.requires_grad_() for t in map(torch.clone, tensors)), 2.0)) \
        if device.type == "cpu" else None


def test_a_program_is_pickled_as_its_text():
    f = C.program(GATED)
    assert pickle.loads(pickle.dumps(f)) is f and copy.deepcopy(f) is f and f.__doc__.startswith("program scaled_gate")


def test_a_block_with_a_whole_row_in_it(device):
    f = C.program("""block mlp {
        in  x : bf16[M, D]
        in  g : bf16[D]
        in  up : bf16[F, D]
        in  down : bf16[D, F]
        u = relu(rmsnorm(x, g, 1e-5) @ up.T)
        out y : bf16[M, D] = (u * u) @ down.T + x
    }""")
    tensors = [torch.randn(9, 32, device=device), torch.rand(32, device=device), torch.randn(72, 32, device=device) / 6,
               torch.randn(32, 72, device=device) / 9]

    def theirs(x, g, up, down):
        h = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * g
        return F.linear(F.linear(h, up).relu().square(), down) + x
    compare(f, theirs, tensors)


def test_a_program_whose_names_are_words_of_python_and_torch():
    f = C.program("program class { in lambda, class, self : bf16[M, K]\n out def : bf16[M, K] = lambda + class + self }")
    x = torch.randn(3, 4, requires_grad=True)
    y = f(x, x, self=x)
    y.sum().backward()
    assert torch.equal(y, x + x + x) and torch.equal(x.grad, torch.full_like(x, 3)) and "class(lambda, class, self)" in repr(f)


def test_a_program_under_autocast(device):
    f = C.program(GATED)
    x, w, b, s = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((9, 32), (40, 32), (40,), (9,)))
    with torch.autocast(device.type, torch.bfloat16):
        y = f(F.linear(x, torch.eye(32, device=device)), w, b, s)
    y.sum().backward()
    assert y.dtype is torch.bfloat16 and w.grad.dtype is x.grad.dtype is torch.float32
    torch.testing.assert_close(y.float(), f(x, w, b, s), rtol=5e-2, atol=5e-2)


def test_a_program_compiles_inside_a_graph(device):
    f = C.program(GATED)
    x, w, b, s = (torch.randn(9, 32, device=device), torch.randn(40, 32, device=device), torch.randn(40, device=device),
                  torch.rand(9, device=device))
    compiled = torch.compile(lambda x: f(x, w, b, s), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), f(x, w, b, s))
