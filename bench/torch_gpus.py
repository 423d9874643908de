"""A training step of a Llama of 1.5 billion parameters on several GPUs, through PyTorch's own engines.

    NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node 2 bench/torch_gpus.py --out runs/gpus.jsonl

DDP and FSDP2 (`fully_shard` of every layer) around the model that torch_suite.py's step trains, unpatched, with Liger, and with
coda. Every GPU has a batch of its own; steps of the peers take turns, and a step's time is the slowest GPU's. The third loss,
averaged over the GPUs, shows that all compute the same.
"""

import argparse
import json
import os
import random
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_suite


def wrapped(engine, model):
    if engine == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def mean(loss):
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def slowest(ms):
    longest = torch.tensor(ms, device="cuda")
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.item()


def timed(step):
    dist.barrier()
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return slowest(begin.elapsed_time(end))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--engines", type=names, default=["ddp", "fsdp2"])
    parser.add_argument("--peers", type=names, default=["eager", "liger", "coda"])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16384, help="of every GPU")
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", help="JSON lines are added to this file")
    o = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    config = torch_suite.llama(o.vocabulary, o.layers)
    torch.manual_seed(1 + dist.get_rank())
    ids = torch.randint(0, o.vocabulary, (o.tokens // 8192 or 1, min(8192, o.tokens)), device=device)
    for engine in o.engines:
        steps, losses = {}, {}
        for peer in o.peers:
            step = torch_suite.training_step(peer, config, ids, lambda model, engine=engine: wrapped(engine, model))
            losses[peer] = [mean(step()) for _ in range(3)][-1]
            steps[peer] = step
            torch.cuda.empty_cache()
        times, order = {peer: [] for peer in steps}, random.Random(1)
        for _ in range(o.repeat):
            for peer in order.sample(list(steps), len(steps)):
                times[peer].append(timed(steps[peer]))
        for peer, ms in times.items():
            row = {"section": "gpus", "engine": engine, "peer": peer, "gpus": dist.get_world_size(),
                   "both_ms": statistics.median(ms), "third_loss": losses[peer], "tokens_a_gpu": ids.numel(),
                   "card": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d")}
            if dist.get_rank() == 0:
                print(json.dumps(row), file=open(o.out, "a") if o.out else None, flush=True)
        steps = step = None
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
