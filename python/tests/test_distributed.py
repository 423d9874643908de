"""DDP and FSDP2 around a patched model give the losses of one process on the same batch."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

transformers = pytest.importorskip("transformers")

import coda.torch as C  # noqa: E402

STEPS, BATCH, LENGTH, WORLD = 4, 4, 16, 2


def model(device):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=129, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, attn_implementation="sdpa")
    made = transformers.LlamaForCausalLM(config).to(device).train()
    assert not C.apply(made).left
    return made


def batches(device):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 129, (BATCH, LENGTH), generator=generator).to(device)] * STEPS


def train(run, batches, mean=lambda loss: loss, optimizer=torch.optim.AdamW):
    optimizer, losses = optimizer(run.parameters(), lr=1e-2), []
    for ids in batches:
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean(loss.detach()).item())
    return losses


def sharded(made, kind):
    mesh = init_device_mesh(kind, (WORLD,))
    for layer in made.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def worker(rank, port, kind, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", rank=rank, world_size=WORLD)
    def mean(loss):
        dist.all_reduce(loss)
        return loss / WORLD
    half = BATCH // WORLD
    mine = [b[rank * half:(rank + 1) * half] for b in batches(device)]
    losses = {"ddp": train(torch.nn.parallel.DistributedDataParallel(model(device)), mine, mean),
              "fsdp2": train(sharded(model(device), kind), mine, mean),
              "fsdp2 with coda's AdamW": train(sharded(model(device), kind), mine, mean, C.AdamW)}
    if rank == 0:
        results.put(losses)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_losses_of_ddp_and_fsdp2_equal_those_of_one_process(kind):
    if kind == "cuda" and torch.cuda.device_count() < WORLD:
        pytest.skip("needs two GPUs")
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    mp.spawn(worker, (free_port(), kind, results), nprocs=WORLD)
    device = torch.device(kind)
    expected = train(model(device), batches(device))
    for engine, losses in results.get().items():
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4, msg=lambda text, engine=engine: f"{engine}: {text}")
    assert expected[-1] < expected[0]
