"""Loss curves of a Llama over text, patched and unpatched, in bf16: is the difference within run-to-run spread?

    python bench/torch_curve.py --steps 300 [--width 1024 --layers 8 --tokens 8192] [--data PATH...] [--out curve.jsonl]

Text is bytes: of the files given, or of this source tree. Every run starts from the same weights. `eager` and `coda` see the
same batches in the same order, twice each: on a GPU, atomics in attention's backward are all that differs between two runs of
one; on a CPU nothing would, so the second run starts from one weight that differs in its last bit. `other order` is of other
batches. Reported are the mean loss of the last 50 steps, and the root mean square over all steps of the difference of curves
smoothed over 20 steps.
"""

import argparse
import concurrent.futures
import copy
import json
import multiprocessing
import pathlib

import torch
import transformers

import coda.torch

SUFFIXES = {".c", ".h", ".py", ".md", ".coda", ".cu"}


def text(paths):
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [pathlib.Path(p) for p in paths] or [
        f for d in ("src", "include", "cli", "tests", "python", "docs", "programs", "blocks", "bench")
        for f in sorted((root / d).rglob("*")) if f.suffix in SUFFIXES]
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def batches(data, options, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, length = options.tokens // options.length, options.length
    for _ in range(options.steps):
        starts = torch.randint(0, len(data) - length, (rows,), generator=generator)
        yield torch.stack([data[s:s + length] for s in starts]).long().to(options.device)


class Exact:
    """Loss and gradients of a bf16 model's weights computed in f32, and rounded once, into its gradients."""

    def __init__(self, model):
        self.model, self.single = model, copy.deepcopy(model).float()

    def __call__(self, **inputs):
        pairs = list(zip(self.single.parameters(), self.model.parameters()))
        for p, q in pairs:
            p.grad, p.data = None, q.detach().float()
        loss = self.single(**inputs).loss
        loss.backward()
        for p, q in pairs:
            q.grad = p.grad.to(q.dtype)
        return loss.detach()


def curve(options, data, kind, order, nudge):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=options.width, intermediate_size=options.width * 11 // 4, num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64, num_key_value_heads=max(1, options.width // 256), head_dim=64,
        max_position_embeddings=options.length, attn_implementation="sdpa", use_cache=False)
    model = transformers.LlamaForCausalLM(config).to(options.device).bfloat16().train()
    if kind == "coda":
        assert not coda.torch.apply(model).left
    exact = Exact(model) if kind == "exact" else None
    if nudge:
        bits = model.model.embed_tokens.weight.detach().view(torch.int16)
        bits[ord("e"), 0] ^= 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), fused=options.device == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30))
    losses = []
    for ids in batches(data, options, order):
        if exact:
            loss = exact(input_ids=ids, labels=ids)
        else:
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return torch.stack(losses).double().cpu()


def smooth(losses, over=20):
    return losses.unfold(0, min(over, len(losses)), 1).mean(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--order", type=int, default=1, help="of the batches; another one is the next number")
    parser.add_argument("--runs", type=lambda names: names.split("/"), default=[],
                        help="only these, as in `eager/exact`; `exact`, of gradients in f32, is not run without")
    parser.add_argument("--processes", type=int, default=1, help="so many runs at a time, each a process")
    parser.add_argument("--out")
    options = parser.parse_args()
    data, curves = text(options.data), {}
    print(f"{len(data)} bytes of text", flush=True)
    wanted = {name: (options, data, name.split(",")[0], options.order + ("other" in name),
                     options.device == "cpu" and "again" in name)
              for name in ("eager", "coda", "exact", "eager, again", "coda, again", "eager, other order", "coda, other order")
              if name in options.runs or (not options.runs and name != "exact")}
    if options.processes > 1:
        with concurrent.futures.ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
            made = list(pool.map(curve, *zip(*wanted.values())))
    else:
        made = [curve(*arguments) for arguments in wanted.values()]
    for name, losses in zip(wanted, made):
        curves[name] = losses
        print(f"{name:20} first {curves[name][0]:.4f}  last 50 {curves[name][-50:].mean():.4f}", flush=True)
    for a, b in (("eager", "eager, again"), ("coda", "coda, again"), ("eager", "coda"), ("eager, again", "coda, again"),
                 ("eager", "exact"), ("coda", "exact"),
                 ("eager, other order", "coda, other order"), ("eager", "eager, other order")):
        if a not in curves or b not in curves:
            continue
        apart = smooth(curves[a]) - smooth(curves[b])
        print(f"{a} - {b}: rms {apart.square().mean().sqrt():.5f}, mean {apart.mean():+.5f}, last {apart[-1]:+.5f}")
    if options.out:
        with open(options.out, "w") as file:
            for name, losses in curves.items():
                print(json.dumps({"run": name, "losses": [round(v, 5) for v in losses.tolist()]}), file=file)


if __name__ == "__main__":
    main()
