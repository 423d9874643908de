"""AdamW beside torch's."""

import copy

import pytest
import torch
from kit import agrees

import coda.torch as C

SHAPES = [(33, 57), (64,), (13,), (), (3, 4, 5), (0, 4), (130, 264)]


def optimizers(device, dtype, **options):
    """Parameters and optimizer: ours, torch's in the same type, torch's in double."""
    ours = [torch.nn.Parameter(torch.randn(s, device=device).to(dtype)) for s in SHAPES]
    theirs, exact = ([torch.nn.Parameter(p.detach().to(t)) for p in copy.deepcopy(ours)] for t in (dtype, torch.float64))
    return (ours, C.AdamW(ours, **options)), (theirs, torch.optim.AdamW(theirs, fused=True, **options)), \
        (exact, torch.optim.AdamW(exact, **options))


def step_all(*all):
    for parameters in zip(*(p for p, _ in all)):
        gradient = torch.randn_like(parameters[0])
        for p in parameters:
            p.grad = gradient.to(p.dtype)
    for _, optimizer in all:
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_steps_are_those_of_torch(device, dtype):
    all = optimizers(device, dtype, lr=1e-2, betas=(0.8, 0.97), eps=1e-5, weight_decay=0.1)
    for step in range(5):
        for _, optimizer in all:
            optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
        step_all(*all)
    for parameters in zip(*(p for p, _ in all)):
        agrees(*(p.detach() for p in parameters), "parameter")
        for name in ("exp_avg", "exp_avg_sq"):
            agrees(*(optimizer.state[p][name] for (_, optimizer), p in zip(all, parameters)), name)


def test_the_two_load_each_others_state(device):
    (ours, a), (theirs, b), _ = optimizers(device, torch.float32, lr=1e-2)
    for _ in range(2):
        step_all((ours, a), (theirs, b))
    state = copy.deepcopy(a.state_dict())
    a.load_state_dict(copy.deepcopy(b.state_dict()))
    b.load_state_dict(state)
    b.param_groups[0]["fused"] = None  # ours does not say
    step_all((ours, a), (theirs, b))
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_gradient_stays_and_strided_gradients_count(device):
    p, q = (torch.nn.Parameter(torch.ones(6, 4, device=device)) for _ in range(2))
    optimizer = C.AdamW([p, q], lr=0.1, weight_decay=0.0)
    p.grad = torch.arange(1.0, 25.0, device=device).view(4, 6).T
    version = p._version
    assert optimizer.step(lambda: 3) == 3
    torch.testing.assert_close(p.detach(), torch.full_like(p, 0.9))
    torch.testing.assert_close(optimizer.state[p]["exp_avg"], 0.1 * p.grad)
    assert torch.equal(q, torch.ones_like(q)) and p._version > version


def test_what_it_cannot_take_is_said(device):
    for options in ({"lr": -1.0}, {"betas": (0.9, 1.0)}, {"betas": (0.9,)}, {"eps": -1e-8}, {"weight_decay": -0.1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            C.AdamW([torch.nn.Parameter(torch.ones(2))], **options)
    for tensor, error, match in ((torch.ones(2, dtype=torch.float64), TypeError, "float64"),
                                 (torch.ones(4, 6).T, ValueError, "contiguous")):
        p = torch.nn.Parameter(tensor.to(device))
        p.grad = torch.ones_like(p)
        with pytest.raises(error, match=match):
            C.AdamW([p]).step()


def test_sparse_gradients_are_refused(device):
    embedding = torch.nn.Embedding(4, 8, sparse=True, device=device)
    embedding(torch.tensor([1], device=device)).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        C.AdamW(embedding.parameters()).step()


@pytest.mark.parametrize("other, option", [(torch.optim.AdamW, "amsgrad"), (torch.optim.AdamW, "maximize"), (torch.optim.Adam, None)])
def test_a_state_of_another_algorithm_is_refused(other, option):
    p = torch.nn.Parameter(torch.ones(2))
    state = other([p], **({option: True} if option else {})).state_dict()
    with pytest.raises(ValueError, match=option or "decoupled_weight_decay"):
        C.AdamW([p]).load_state_dict(state)


def test_a_state_of_parameters_that_lay_in_another_way(device):
    """What is read by its address is looked at in every step."""
    strided, p = torch.nn.Parameter(torch.randn(6, 4, device=device).T), torch.nn.Parameter(torch.empty(4, 6, device=device))
    theirs, ours = torch.optim.AdamW([strided], lr=0.1), C.AdamW([p], lr=0.1)
    strided.grad = torch.randn(4, 6, device=device)
    theirs.step()
    p.data = strided.detach().contiguous()
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    p.grad = strided.grad = torch.randn(4, 6, device=device)
    theirs.step(), ours.step()
    torch.testing.assert_close(p, strided)
    p.data = strided.data
    with pytest.raises(ValueError, match="contiguous"):
        ours.step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_capture_is_refused():
    p = torch.nn.Parameter(torch.ones(4, 4, device="cuda"))
    p.grad = torch.ones_like(p)
    optimizer = C.AdamW([p])
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
