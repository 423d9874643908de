"""linear_cross_entropy: every option with every output, against torch in double."""

import pytest
import torch
import torch.nn.functional as F
from kit import agrees

import coda.torch as C
from coda.torch import _cross_entropy_parts

VOCABULARIES = [1, 40, 257, 1000]


def reference(x, weight, target, reduction, smoothing, cap, z_loss):
    z = (x @ weight.T).reshape(-1, weight.shape[0]).to(torch.promote_types(x.dtype, torch.float32))
    z = cap * torch.tanh(z / cap) if cap else z
    t = target.reshape(-1)
    loss = F.cross_entropy(z, t, reduction=reduction, label_smoothing=smoothing)
    zl = torch.where(t == -100, 0, z_loss * z.logsumexp(1).square())
    zl = zl if reduction == "none" else zl.sum() / (1 if reduction == "sum" else (t != -100).sum())
    return (loss.view(target.shape), zl.view(target.shape)) if reduction == "none" else (loss, zl)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("cap", [0.0, 3.0])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("chunk", [None, 6])
def test_losses_and_gradients(device, dtype, reduction, smoothing, cap, z_loss, chunk):
    x, w = torch.randn(2, 10, 32, device=device).to(dtype), (torch.randn(257, 32, device=device) / 4).to(dtype)
    target = torch.randint(0, 257, (2, 10), device=device)
    target[0, 3] = target[1, 9] = -100
    weights = torch.rand(target.shape if reduction == "none" else (), device=device) + 0.5
    runs = []
    for kind in ("ours", "plain", "double"):
        a, b = (t.double() if kind == "double" else t.clone() for t in (x, w))
        a.requires_grad_(), b.requires_grad_()
        if kind == "ours":
            made = C.linear_cross_entropy(a, b, target, reduction=reduction, label_smoothing=smoothing, softcap=cap,
                                          z_loss=z_loss, chunk_rows=chunk)
            loss, zl = made if z_loss else (made, None)
        else:
            loss, zl = reference(a, b, target, reduction, smoothing, cap, z_loss)
        total = (weights * loss).sum() + (3 * zl.sum() if z_loss else 0)
        total.backward()
        runs.append([loss, a.grad, b.grad] + ([zl] if z_loss else []))
    for what, ours, plain, double in zip(("loss", "x", "weight", "z"), *runs):
        agrees(ours, plain, double, what)


@pytest.mark.parametrize("v", VOCABULARIES)
def test_ragged_vocabularies_with_very_negative_logits_and_a_cap(device, v):
    x, w = torch.randn(9, 16, device=device), torch.randn(v, 16, device=device) - 20 * torch.rand(v, 1, device=device)
    target = torch.randint(0, v, (9,), device=device)
    for cap in (0.0, 1.0, 30.0):
        ours = C.linear_cross_entropy(x, w, target, softcap=cap, reduction="none")
        expected, _ = reference(x.double(), w.double(), target, "none", 0.0, cap, 0.0)
        torch.testing.assert_close(ours, expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_all_targets_ignored(device, recompute):
    x, w = torch.randn(5, 16, device=device, requires_grad=True), torch.randn(40, 16, device=device, requires_grad=True)
    target = torch.full((5,), -100, device=device)
    loss = C.linear_cross_entropy(x, w, target, recompute=recompute)
    assert loss.isnan()  # as torch's cross_entropy
    total = C.linear_cross_entropy(x, w, target, reduction="sum", recompute=recompute)
    total.backward()
    assert total == 0 and not x.grad.any() and not w.grad.any()


def test_an_ignore_index_inside_the_vocabulary(device):
    x, w = torch.randn(6, 16, device=device), torch.randn(40, 16, device=device)
    target = torch.tensor([0, 1, 2, 0, 5, 0], device=device)
    torch.testing.assert_close(C.linear_cross_entropy(x, w, target, ignore_index=0),
                               F.cross_entropy(x @ w.T, target, ignore_index=0), rtol=1e-5, atol=1e-5)


def test_a_frozen_head_gets_no_gradient_and_a_frozen_input_none_either(device):
    x, w, target = torch.randn(6, 16, device=device), torch.randn(40, 16, device=device), torch.arange(6, device=device)
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    C.linear_cross_entropy(a, b, target).backward()
    for recompute in (False, True):
        only_x, only_w = x.clone().requires_grad_(), w.clone().requires_grad_()
        C.linear_cross_entropy(only_x, w, target, recompute=recompute).backward()
        C.linear_cross_entropy(x, only_w, target, recompute=recompute).backward()
        torch.testing.assert_close(only_x.grad, a.grad)
        torch.testing.assert_close(only_w.grad, b.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_gradient_adds_up_in_main_grad(device, dtype):
    x, w = torch.randn(20, 16, device=device).to(dtype), torch.randn(40, 16, device=device).to(dtype).requires_grad_()
    target, main = torch.randint(0, 40, (20,), device=device), torch.ones(40, 16, device=device)
    C.linear_cross_entropy(x, w, target, chunk_rows=6).mul(2).backward()
    for _ in range(2):
        C.linear_cross_entropy(x, w2 := w.detach().requires_grad_(), target, main_grad=main, chunk_rows=6).backward()
        assert w2.grad is None
    assert main._version == 2
    torch.testing.assert_close(main - 1, w.grad.float(), rtol=2e-2, atol=1e-3)


def test_the_error_of_the_weights_gradient_does_not_grow_with_the_number_of_chunks(device):
    x, w = torch.randn(256, 16, device=device).bfloat16(), torch.randn(64, 16, device=device).bfloat16().requires_grad_()
    target = torch.randint(0, 64, (256,), device=device)
    double = w.detach().double().requires_grad_()
    F.cross_entropy(x.double() @ double.T, target).backward()
    errors = []
    for chunk in (256, 16, 1):
        w.grad = None
        C.linear_cross_entropy(x, w, target, chunk_rows=chunk).backward()
        errors.append(((w.grad.double() - double.grad).norm() / double.grad.norm()).item())
    assert max(errors) < 1.2 * min(errors), errors


def test_a_gradient_rounded_with_every_chunk_is_close(device):
    x, w = torch.randn(256, 16, device=device).bfloat16(), torch.randn(64, 16, device=device).bfloat16().requires_grad_()
    target = torch.randint(0, 64, (256,), device=device)
    double = w.detach().double().requires_grad_()
    F.cross_entropy(x.double() @ double.T, target).backward()
    errors = []
    for chunk in (256, 64, 16):
        w.grad = None
        C.linear_cross_entropy(x, w, target, chunk_rows=chunk, exact=False).backward()
        errors.append(((w.grad.double() - double.grad).norm() / double.grad.norm()).item())
    assert errors[0] < errors[1] < errors[2] < 4 * errors[0], errors  # it grows, as the root of the number of chunks does



@pytest.mark.parametrize("recompute", [False, True])
def test_a_second_backward_where_the_graph_was_kept_and_only_there(device, recompute):
    x, w = torch.randn(6, 16, device=device, requires_grad=True), torch.randn(40, 16, device=device, requires_grad=True)
    loss = C.linear_cross_entropy(x, w, torch.arange(6, device=device), recompute=recompute)
    (3 * loss).backward(retain_graph=True)
    first = w.grad.clone()
    loss.backward()
    torch.testing.assert_close(w.grad, first + first / 3)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_the_loss_of_what_is_still_to_be_scaled(device):
    x, w, head = torch.randn(6, 16, device=device), torch.randn(16, 16, device=device), torch.randn(40, 16, device=device)
    y, normed = C.linear_residual_rmsnorm(x, w, x, torch.rand(16, device=device))
    target = torch.arange(6, device=device)
    torch.testing.assert_close(C.linear_cross_entropy(normed, head, target),
                               torch.nn.functional.cross_entropy(normed.tensor() @ head.T, target))


def test_an_ignore_index_that_is_no_i32(device):
    x, w = torch.randn(3, 16, device=device), torch.randn(40, 16, device=device)
    rows = C.linear_cross_entropy(x, w, torch.tensor([0, 2**40, 5], device=device), ignore_index=2**40, reduction="none")
    assert rows.bool().tolist() == [True, False, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the assertion would end the GPU's context")
def test_a_target_out_of_bounds_is_seen_in_a_compiled_graph():
    x, w = torch.randn(3, 16), torch.randn(40, 16)
    loss = torch.compile(lambda t: C.linear_cross_entropy(x, w, t), fullgraph=True, backend="aot_eager")
    loss(torch.tensor([0, -100, 39]))
    with pytest.raises(RuntimeError, match="a target is out of bounds"):
        loss(torch.tensor([0, 1, 40]))


def test_compiled_with_fullgraph(device):
    x, w = torch.randn(20, 16, device=device, requires_grad=True), torch.randn(40, 16, device=device, requires_grad=True)
    target = torch.randint(0, 40, (20,), device=device)
    for options in ({}, {"reduction": "none"}, {"z_loss": 0.1}):
        def loss(x, w):
            made = C.linear_cross_entropy(x, w, target, chunk_rows=6, **options)
            return sum(t.sum() for t in made) if isinstance(made, tuple) else made.sum()
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        for a, b in zip(torch.autograd.grad(compiled(x, w), (x, w)), torch.autograd.grad(loss(x, w), (x, w))):
            torch.testing.assert_close(a, b)


def hard_rows():
    """Logits of one kind a case: {name: (x, weight)}. The guess of the log-sum-exp looks at every second of 300 columns."""
    x, w = torch.randn(20, 16), torch.randn(300, 16) / 4
    far, mixed, one = x.clone(), x.clone(), w.clone()
    far *= 1e4  # logits of +-1e4
    mixed[3] *= 300  # one row among others
    one[7] = 60 * x[5] / x[5].norm()  # a column that the guess does not see, far above all others in row 5
    low = torch.cat([w[:, :15], torch.full((300, 1), -200.0)], 1)  # all logits far below 0
    low_x = torch.cat([x[:, :15], torch.ones(20, 1)], 1)
    unseen = w.clone()
    unseen[1::2, 15] = 90.0  # every row is far above what the guess sees
    return {"far": (far, w), "one row": (mixed, w), "one column": (x, one), "low": (low_x, low),
            "all rows": (low_x, unseen), "zero": (0 * x, w)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", hard_rows())
@pytest.mark.parametrize("z_loss", [0.0, 1e-3])
def test_no_logits_make_a_gradient_wrong(device, dtype, name, z_loss):
    x, w = (t.to(device, dtype) for t in hard_rows()[name])
    target = torch.randint(0, 300, (20,), device=device)
    target[5], target[9] = 7, -100
    runs = []
    for kind in ("ours", "plain", "double"):
        a, b = (t.double() if kind == "double" else t.clone() for t in (x, w))
        a.requires_grad_(), b.requires_grad_()
        if kind == "ours":
            made = C.linear_cross_entropy(a, b, target, z_loss=z_loss, chunk_rows=8, recompute=True)
            loss, zl = made if z_loss else (made, None)
        else:
            loss, zl = reference(a, b, target, "mean", 0.0, 0.0, z_loss)
        (loss + zl if z_loss else loss).backward()
        runs.append([loss, a.grad, b.grad])
    for what, ours, plain, double in zip(("loss", "x", "weight"), *runs):
        agrees(ours, plain, double, what)


def test_rows_keep_their_bits_beside_a_row_of_which_the_guess_was_wrong(device):
    x, w = torch.randn(12, 16, device=device), torch.randn(300, 16, device=device) / 4
    target = torch.randint(0, 300, (12,), device=device)

    def run(x):
        a = x.clone().requires_grad_()
        loss = C.linear_cross_entropy(a, w, target, reduction="none")
        loss.sum().backward()
        return loss.detach(), a.grad
    loss, dx = run(x)
    x[4] *= 1000
    other_loss, other_dx = run(x)
    others = torch.arange(12, device=device) != 4
    assert torch.equal(loss[others], other_loss[others]) and torch.equal(dx[others], other_dx[others])
    assert not torch.equal(loss[4], other_loss[4])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_row(device, bad):
    x, w = torch.randn(12, 16, device=device), torch.randn(300, 16, device=device) / 4
    target = torch.randint(0, 300, (12,), device=device)
    x[4, 2] = bad
    x.requires_grad_()
    loss = C.linear_cross_entropy(x, w, target, reduction="none")
    loss.sum().backward()
    others = torch.arange(12, device=device) != 4
    assert not loss[4].isfinite() and x.grad[4].isnan().all()
    assert loss[others].isfinite().all() and x.grad[others].isfinite().all()


def test_a_loss_without_gradients_is_that_with_them(device):
    x, w = torch.randn(12, 16, device=device), torch.randn(300, 16, device=device) / 4
    target = torch.randint(0, 300, (12,), device=device)
    for options in ({}, {"softcap": 3.0}, {"label_smoothing": 0.1}):
        alone = C.linear_cross_entropy(x, w, target, **options)
        torch.testing.assert_close(alone, C.linear_cross_entropy(x, w.clone().requires_grad_(), target, **options).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [None, 4, 8])
@pytest.mark.parametrize("cap", [0.0, 3.0])
def test_parts_of_the_vocabulary_side_by_side(device, monkeypatch, dtype, chunk, cap):
    """As where a chunk has few rows on a GPU, with sums in later rows of the gradient, behind the logits, and elsewhere."""
    x, w = torch.randn(80, 16, device=device).to(dtype), torch.randn(300, 16, device=device).to(dtype)
    target = torch.randint(0, 300, (80,), device=device)
    target[7] = -100
    runs, places = [], set()

    def place(memory, dx, first, rows, *rest):
        sums, k = before(memory, dx, first, rows, *rest)
        kinds = {dx.untyped_storage().data_ptr(): "rows", memory.untyped_storage().data_ptr(): "chunk"}
        places.update(kinds.get(p.untyped_storage().data_ptr(), "own") for p in sums)
        return sums, k
    before = _cross_entropy_parts.place
    monkeypatch.setattr(_cross_entropy_parts, "count", lambda *_: 3 if dtype is torch.bfloat16 else 1)
    monkeypatch.setattr(_cross_entropy_parts, "place", place)
    for kind in ("ours", "plain", "double"):
        a, b = (t.double() if kind == "double" else t.clone() for t in (x, w))
        a.requires_grad_(), b.requires_grad_()
        loss = C.linear_cross_entropy(a, b, target, chunk_rows=chunk, softcap=cap) if kind == "ours" else \
            reference(a, b, target, "mean", 0.0, cap, 0.0)[0]
        loss.backward()
        runs.append([loss, a.grad, b.grad])
    for what, ours, plain, double in zip(("loss", "x", "weight"), *runs):
        agrees(ours, plain, double, what)
    if dtype is torch.bfloat16 and not cap:
        assert places == ({"own"} if chunk is None else {"rows", "chunk"}), places


def test_a_lean_loss_has_the_same_gradients_but_for_rounding(device):
    x, w = torch.randn(600, 16, device=device).bfloat16(), torch.randn(300, 16, device=device).bfloat16()
    target = torch.randint(0, 300, (600,), device=device)
    runs = []
    for options in ({"lean": True}, {"chunk_rows": 252, "exact": False}, {}):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        loss = C.linear_cross_entropy(a, b, target, **options)
        loss.backward()
        runs.append((loss.detach(), a.grad, b.grad))
    for lean, chunks, usual in zip(*runs):
        assert torch.equal(lean, chunks)
        torch.testing.assert_close(lean, usual, rtol=2e-2, atol=1e-4)
    with pytest.raises(ValueError, match="chunk_rows"):
        C.linear_cross_entropy(x, w, target, lean=True, chunk_rows=8)
