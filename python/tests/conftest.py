import pytest
import torch

torch.set_num_threads(2)
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return torch.device(request.param)
