"""linear_cross_entropy with logits as exponentials, with a pass over the logits, and torch.compile, in one process.

    PYTHONPATH=python python3 bench/torch_head.py --sizes 2048x32768,2048x128256 [--chunk-rows 0,1024] [--kernels] [--json FILE]

Forward and backward of a mean, rounds in random order, L2 overwritten before each; medians and minima in milliseconds. `marked`: all
rows are out of the window of the exponentials and are computed again. --kernels: what each launch takes by itself, in microseconds.
"""
import argparse
import json
import math
import random
import statistics

import torch
import torch.nn.functional as F

import coda.torch as C
from coda._program import Module, standard_module
from coda.torch import _cross_entropy
from coda.torch._cross_entropy_text import BY_EXPONENTIALS, GRADIENTS, by_pass
from coda.torch._launch import device_key
from coda.torch._sequence import Sequence


def forced(by_exponentials):
    """linear_cross_entropy one way or the other; its choice is a line of _Chunks."""
    init = _cross_entropy._Chunks.__init__

    def run(*arguments, **options):
        def choose(self, *a, **k):
            init(self, *a, **k)
            self.by_exponentials = by_exponentials
        _cross_entropy._Chunks.__init__ = choose
        try:
            return C.linear_cross_entropy(*arguments, **options)
        finally:
            _cross_entropy._Chunks.__init__ = init
    return run


def operands(width, vocabulary, tokens, times=1.0):
    torch.manual_seed(0)
    x = (times * torch.randn(tokens, width, device="cuda")).bfloat16().requires_grad_()
    w = (torch.randn(vocabulary, width, device="cuda") / width**0.5).bfloat16().requires_grad_()
    return x, w, torch.randint(0, vocabulary, (tokens,), device="cuda")


def step(loss, x, w, t, **options):
    def run():
        x.grad = w.grad = None
        loss(x, w, t, **options).backward()
    return run


def timed(work, rounds, flush):
    times = {name: [] for name in work}
    for run in work.values():
        run()
    for _ in range(rounds):
        for name in random.sample(list(work), len(work)):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(), work[name](), end.record()
            times[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: [a.elapsed_time(b) for a, b in pairs] for name, pairs in times.items()}


def whole(width, vocabulary, tokens, chunks):
    x, w, t = operands(width, vocabulary, tokens)
    work = {}
    for chunk in chunks:
        rows = {"chunk_rows": min(chunk, tokens)} if chunk else {}
        label = f", {chunk} rows" if chunk else ""
        work |= {"exponentials" + label: step(forced(True), x, w, t, **rows), "pass" + label: step(forced(False), x, w, t, **rows)}
    far, _, _ = operands(width, vocabulary, tokens, 40.0)
    work["marked"] = step(forced(True), far, w, t)
    if tokens * vocabulary < 1 << 30:  # it makes logits in f32
        work["torch.compile"] = step(torch.compile(lambda x, w, t: F.cross_entropy((x @ w.T).float(), t)), x, w, t)
    return work


def kernels(width, vocabulary, tokens):
    """Launches by name. Those with `when` find nothing to do."""
    x, w, t = operands(width, vocabulary, tokens)
    x, w, t, runs = x.detach(), w.detach(), t.int(), -(-vocabulary // 128)
    some = w[::-(-vocabulary // 256)]
    f = lambda *shape: torch.zeros(*shape, device="cuda")  # noqa: E731
    values = dict(A=x, W=w, some=some, t=t, E=torch.empty(tokens, vocabulary, device="cuda", dtype=torch.bfloat16), S=f(tokens, runs),
                  P=f(tokens, -(-runs // 128)), C=f(tokens, -(-some.shape[0] // 128)), B=f(tokens, -(-runs // 128)), marked=f(tokens),
                  T=f(tokens), ce=f(tokens), zl=f(tokens), s=f(tokens), w=f(tokens) + 1 / tokens, u=f(tokens), lse=f(tokens),
                  H=torch.empty_like(x), dX=torch.empty_like(x), dW=torch.empty_like(w))
    values |= dict(Z=values["E"], dZ=values["E"], L=values["S"], dA=values["dX"])
    parameters = dict(shift=math.log(vocabulary / some.shape[0]), ignore=-100.0, z_loss=0.0)
    work = {}
    programs = [("", p) for p in Module.parse(BY_EXPONENTIALS, "e")] + [("pass: ", p) for p in Module.parse(by_pass(False, False), "p")] + \
        [("", p) for p in Module.parse(GRADIENTS, "g") if p.name == "weight_gradient"] + [("pass: ", standard_module()["gemm_dgrad"])]
    for prefix, p in programs:
        given = [values["E"] if o.name == "dY" else values[o.name] for o in p.operands] + [parameters[n] for n in p.parameters]
        run = Sequence(p.name, [p], p.operands, [], p.parameters).run
        work[prefix + p.name] = lambda run=run, given=given: run(device_key(x), *given)
    return work


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2048x32768,4096x32768,2048x128256", help="width x vocabulary")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--chunk-rows", default="0", help="0: the default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", default="/dev/stdout")
    args = parser.parse_args()
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    for size in args.sizes.split(","):
        width, vocabulary = map(int, size.split("x"))
        work = kernels(width, vocabulary, args.tokens) if args.kernels else \
            whole(width, vocabulary, args.tokens, [int(c) for c in args.chunk_rows.split(",")])
        scale = 1000 if args.kernels else 1
        row = {name: [round(scale * statistics.median(q), 3), round(scale * min(q), 3)] for name, q in timed(work, args.rounds, flush).items()}
        with open(args.json, "a") as out:
            print(json.dumps({"width": width, "vocabulary": vocabulary, "tokens": args.tokens, "median, min": row}), file=out, flush=True)
        del work
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
