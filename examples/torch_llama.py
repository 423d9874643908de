"""A Llama in the shape of torchtitan's, from coda.torch.TransformerBlock, trained on the bytes of a file.

    python examples/torch_llama.py --data README.md --steps 100
    torchrun --nproc-per-node 2 examples/torch_llama.py --dim 2048 --layers 16       # FSDP2
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

import coda.torch as C


class Transformer(nn.Module):
    def __init__(self, vocabulary, dim, layers, heads, kv_heads, hidden_dim, length):
        super().__init__()
        self.head_dim, self.length = dim // heads, length
        self.tok_embeddings = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleDict({str(i): C.TransformerBlock(dim, heads, hidden_dim, kv_heads) for i in range(layers)})
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        self.output = nn.Linear(dim, vocabulary, bias=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tok_embeddings(tokens)
        table = C.rope_table(self.length, self.head_dim, 500000.0, device=tokens.device)
        for layer in self.layers.values():
            x = layer(x, table)
        return C.linear_cross_entropy(self.norm(x), self.output.weight, targets)


def batches(path, batch, length, device, seed):
    data = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(0, len(data) - length - 1, (batch,), generator=generator)
        rows = torch.stack([data[s:s + length + 1] for s in starts]).to(device)
        yield rows[:, :-1], rows[:, 1:]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.path.join(here, "..", "README.md"))
    for name, default in (("steps", 100), ("batch", 8), ("length", 256), ("dim", 256), ("layers", 4), ("heads", 4),
                          ("kv-heads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=3e-3)
    o = parser.parse_args()

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    hidden = (o.dim * 8 // 3 + 255) // 256 * 256
    model = Transformer(256, o.dim, o.layers, o.heads, o.kv_heads, hidden, o.length).to(device)
    if cuda:
        model = model.bfloat16()
    if world > 1:
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("nccl" if cuda else "gloo")
        for layer in model.layers.values():
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.rate, betas=(0.9, 0.95))
    source, start = batches(o.data, o.batch, o.length, device, rank), time.perf_counter()
    for step in range(1, o.steps + 1):
        loss = model(*next(source))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % 10 == 0 or o.steps <= 20):
            tokens = world * o.batch * o.length * step / (time.perf_counter() - start)
            print(f"step {step}/{o.steps}  loss {loss.item():.4f}  {tokens:.0f} tokens/s", flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
