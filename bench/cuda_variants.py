#!/usr/bin/env python3
"""Times programs of several builds of the library, at the shapes of cuda_bench.py, beside the last build's bare product
and cuBLAS.

    python3 bench/cuda_variants.py before=OLD/libcoda.so now=build/libcoda.so [--width 2048,4096] [--only out,qkv] [--rounds 17]

Every variant once a round, in an order drawn anew each round, 256 MB written before each, median. Outs are compared with
the first build's: an out of which any bit differs is told with its relative error.
"""
import argparse, random, statistics

import cuda_bench as bench
import torch


def timed(variants, rounds):
    times = {name: [] for name in variants}
    for i in range(rounds + 2):
        for name in random.sample(list(variants), len(variants)):
            bench.flush()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            variants[name]()
            end.record()
            if i >= 2:
                times[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in times.items()}


def differences(kernel, first):
    return {name: bench.difference(out, first.data[name]) for name, out in kernel.outs().items()
            if not torch.equal(out, first.data[name]) or torch.isnan(out.float()).any().item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="+", help="NAME=PATH")
    parser.add_argument("--width", default="2048,4096")
    parser.add_argument("--only", default="", help="rows, separated by commas")
    parser.add_argument("--rounds", type=int, default=17)
    args = parser.parse_args()
    random.seed(1)
    libraries = {name: bench.Coda(path) for name, path in (item.split("=", 1) for item in args.library)}
    newest = list(libraries)[-1]
    for width in map(int, args.width.split(",")):
        for row, (program, dims, bare, bare_dims) in bench.layer(width).items():
            if program == bare or (args.only and row not in args.only.split(",")):
                continue
            torch.manual_seed(1)
            base = bench.Kernel(libraries[newest], bare, bare_dims, "warps")
            variants, share, first = {"cuBLAS": bench.cublas(bare, base), "bare": base}, {}, None
            for name, library in libraries.items():
                kernel = variants[name] = bench.Kernel(library, program, dims, "warps", share=share)
                share.update(kernel.data)
                kernel()
                torch.cuda.synchronize()
                first = first or kernel
                different = differences(kernel, first)
                if different:
                    print(f"{width} {row} {name} differs: {different}")
            times = timed(variants, args.rounds)
            line = " ".join(f"{name} {ms:.4f} ({ms / times['bare']:.3f})" for name, ms in times.items())
            print(width, row, line, flush=True)
            del base, variants, share, first, kernel
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
