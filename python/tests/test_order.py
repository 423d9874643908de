"""The order of a backward's launches, which of them one call makes, and whose memory they take."""

import itertools
import sys
import threading

import pytest
import torch

import coda
import coda.torch as C
from coda.torch import _derived, _sequence
from coda.torch._blocks import OPERATORS
from coda.torch._order import calls_of, is_faster, is_small, overwritten


def normal(device, dtype, *shape):
    return (torch.randn(*shape, device=device) / shape[-1] ** 0.5).to(dtype)


def test_a_call_ends_where_memory_is_free_that_the_next_launch_could_take():
    assert calls_of([1, 0, 2, 0], [0, 0, 0, 0]) == [[0, 1, 2, 3]]
    assert calls_of([1, 0, 2, 1], [0, 1, 1, 0]) == [[0, 1], [2], [3]]
    assert calls_of([1, 0, 0, 1], [2, 0, 0, 0]) == [[0, 1, 2], [3]]
    assert is_small(2048, 8192, 16384) and is_small(11008, 4096, 16384) and not is_small(8192, 22016, 16384)


def test_outs_take_the_memory_of_what_is_read_at_their_place_for_the_last_time():
    module = coda.Module.parse("""
program first { in a, b : bf16[M, N]; in c : bf16[M, K]; in w : bf16[K, N]; in h : f32[M, N]
    d = c @ w; out e : bf16[M, N] = a * d; out f : bf16[M, N] = b + d; out g : bf16[M, N] = b + h }
program second { in a : bf16[M, N]; in r : bf16[M, N]; in t : f32[P, H]; in p : i32[M]; out s : bf16[M, N] = a + rope(r, t, p) }
""".replace(";", "\n").replace("{ ", "{\n").replace(" }", "\n}"), "trial")
    free = {"a", "b", "c", "h", "r"}
    assert overwritten(list(module), free, []) == {"e": "b"}                   # a is read later, rope reads elsewhere
    assert overwritten(list(module)[:1], free, []) == {"e": "a", "f": "b"}
    assert overwritten(list(module)[:1], free, ["e"]) == {"f": "a", "g": "b"}  # e is the caller's
    assert overwritten(list(module)[:1], {"b"}, []) == {"e": "b"}


@pytest.mark.parametrize("width,hidden,faster", [(2048, 5632, True), (2048, 8192, False), (8192, 22016, False)])
def test_gradients_wait_for_each_other_where_the_library_gains_by_it(width, hidden, faster):
    down, output, others = (width, hidden, 16384), (width, width, 16384), [(hidden, width, 16384)] * 2
    device = coda.Device("cuda:sm_90a")  # only plans, so no GPU is needed
    assert is_faster(device, [[down], [output, *others]], [[down, output, *others]]) == faster
    assert not is_faster(coda.Device("cpu"), [[down], [output, *others]], [[down, output, *others]])


def layer(device, dtype, batch=2, length=35, d=128, f=256, e=128, dim=64):
    """A function of attention_output_mlp_rope's tensors, and these."""
    shapes = [(batch, length, d), (batch, length, d), (d, d), (d,), (f, d), (f, d), (d, f), (d,), (d, d), (e, d), (e, d)]
    table = C.rope_table(length, dim, device=device)
    return lambda *tensors: C.attention_output_mlp_rope(*tensors, table), [
        normal(device, dtype, *s).requires_grad_() for s in shapes]


@pytest.mark.parametrize("how", ["kept graph", "looked at", "hooks", "columns joined"])
def test_what_was_kept_is_overwritten_only_where_nobody_else_can_see_it(device, how, monkeypatch):
    function, tensors = layer(device, torch.bfloat16, e=64 if how == "columns joined" else 128)
    overwrites, made = [], _derived.Backward._sequence
    monkeypatch.setattr(_derived.Backward, "_sequence", lambda self, *way: (overwrites.append(way[1]), made(self, *way))[1])
    results = function(*tensors)
    arriving = [torch.randn_like(r) for r in results]
    expected = torch.autograd.grad(results, tensors, arriving)
    assert overwrites == [True]
    seen = []
    if how == "hooks":
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(t), t)[1], lambda t: t):
            results = function(*tensors)
    else:
        results = function(*tensors)
        seen += results[0].grad_fn.saved_tensors if how == "looked at" else ()
    before = [t.clone() for t in seen]
    for turn in range(2):
        got = torch.autograd.grad(results, tensors, arriving, retain_graph=turn == 0 or how == "kept graph")
        assert all(torch.equal(a, b) for a, b in zip(got, expected))
    assert all(torch.equal(a, b) for a, b in zip(seen, before))
    assert overwrites[1:] == [False, how == "columns joined"]


def test_every_order_of_launches_and_memory_gives_the_same_bits(device, monkeypatch):
    function, tensors = layer(device, torch.bfloat16)
    results = function(*tensors)
    arriving = [torch.randn_like(r) for r in results]
    gradients = lambda: torch.autograd.grad(results, tensors, arriving, retain_graph=True)  # noqa: E731
    expected = gradients()
    backward = results[0].grad_fn.ready.derived
    for gathered, small in itertools.product((False, True), repeat=2):
        monkeypatch.setattr(backward, "_sequences", {})
        monkeypatch.setattr(_sequence.Sequence, "_plans", lambda self: self._way(gathered, small))
        assert all(torch.equal(a, b) for a, b in zip(gradients(), expected))
        assert set(next(iter(backward._sequences.values()))._ways) == {(gathered, small)}


def test_threads_on_one_stream_do_not_meet_in_memory(device):
    """Launches of a call may overlap, and another thread's may come between them: what it frees must not be theirs already."""
    operator = OPERATORS["linear_swiglu"]
    sizes, count = (640, 256, 512), 40 if device.type == "cuda" else 3
    variant = operator.variant("bf16")
    key = device.index or 0 if device.type == "cuda" else "cpu"

    def inputs():
        m, k, n = sizes
        return [normal(device, torch.bfloat16, *s) for s in ((m, k), (n, k), (n, k), (m, n))]

    def run(x, gate, up, dy):
        kept = variant.keep.run(key, x, gate, up)
        place = dict(zip(variant.keep.results, kept), x=x, gate=gate, up=up, dy=dy)
        backward = variant.backward(0b111).sequence
        results = backward.run(key, [place[o.name] for o in backward.arguments])
        return kept[0], *results

    given, wrong = [inputs() for _ in range(3)], []
    expected = [run(*tensors) for tensors in given]

    def repeat(tensors, wanted):
        for _ in range(count):
            got = run(*tensors)
            wrong.extend(i for i, (a, b) in enumerate(zip(got, wanted)) if not torch.equal(a, b))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=repeat, args=pair) for pair in zip(given, expected)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
