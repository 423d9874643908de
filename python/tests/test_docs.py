"""Every example in the documentation runs as it stands."""

import os
import re
import subprocess
import sys

import pytest
import torch

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
PAGE = os.path.join(ROOT, "docs", "pytorch.md")
EXAMPLES = re.findall(r"^### (.*?)$|^## (.*?)$|```python\n(.*?)```", open(PAGE).read(), re.S | re.M) \
    if os.path.exists(PAGE) else []
CODE = [(next((e[0] or e[1] for e in reversed(EXAMPLES[:i]) if not e[2]), "start"), e[2])
        for i, e in enumerate(EXAMPLES) if e[2]]


@pytest.mark.parametrize("title, code", CODE, ids=[title for title, _ in CODE])
def test_an_example_of_the_documentation(title, code):
    if "transformers" in code:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    exec(compile(code, title, "exec"), {})


def test_the_page_has_an_example_for_every_operator():
    import coda.torch
    text = "".join(code for _, code in CODE)
    missing = [name for name in coda.torch.__all__ if name[0].islower() and f"coda.torch.{name}(" not in text]
    assert set(missing) <= {"cpu_device", "restore"}, missing


def test_the_llama_example_trains():
    script = os.path.join(ROOT, "examples", "torch_llama.py")
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
    done = subprocess.run([sys.executable, script, "--steps", "8", "--dim", "64", "--layers", "2", "--length", "64"],
                          capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    losses = [float(n) for n in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 8 and losses[-1] < losses[0]
