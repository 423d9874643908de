import pytest
import torch

torch.set_num_threads(2)
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return torch.device(request.param)


def pytest_terminal_summary(terminalreporter):
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if "cuda" in DEVICES else []
    terminalreporter.write_line(f"devices: the CPU{', ' + gpus[0] if gpus else '; no GPU'}; "
                                f"NCCL: {'two GPUs' if len(gpus) > 1 else 'left out, it needs two GPUs'}")
