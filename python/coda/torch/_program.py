"""A user's own program or block as a differentiable function."""

import hashlib
import threading

import torch

from .._program import Module
from ._launch import TORCH_DTYPE
from ._operator import COMPUTE_DTYPES, Operator
from .functional import autocasts

_made: dict = {}
_lock = threading.Lock()


class ProgramFunction:
    """A program as a function of tensors; `coda.torch.program` makes it.

    Call it with the `in`s in the order of the text, or by name, and the `param`s by name. It returns the `out`s: one tensor or a
    tuple. "bf16" in the text stands for the type of the tensors, so that one text serves bfloat16, float16 and float32.
    """

    def __init__(self, operator: Operator, text: str):
        self._operator = operator
        self.name = operator.name
        self.inputs = tuple(o.name for o in operator.inputs)
        self.outputs = tuple(o.name for o in operator.outputs)
        self.parameters = operator.block.parameters
        self.__name__, self.__doc__ = operator.title, text

    def __call__(self, /, *tensors, **named):
        numbers = [float(named.pop(p, default)) for p, default in self.parameters.items()]
        if named:
            missing = self.inputs[len(tensors):]
            unknown = [n for n in named if n not in missing]
            if unknown:
                raise TypeError(f"{self.__name__}() got an unexpected keyword argument {unknown[0]!r}; it takes "
                                f"{', '.join(self.inputs + tuple(self.parameters))}")
            tensors = (*tensors, *(named[n] for n in missing if n in named))
        if len(tensors) != len(self.inputs):
            raise TypeError(f"{self.__name__}() takes {len(self.inputs)} tensors ({', '.join(self.inputs)}), but {len(tensors)} "
                            "were given")
        tensors = self._cast(tensors)
        self._operator.check(tensors)
        return self._operator.call(*tensors, *numbers)

    def _cast(self, tensors):
        """Under autocast floats take the types of the text, "bf16" the one of autocast, as for an operator of torch's list."""
        first = next((t for t in tensors if isinstance(t, torch.Tensor)), None)
        if first is None or not autocasts(first):
            return tensors
        types = {**TORCH_DTYPE, "bf16": torch.get_autocast_dtype(first.device.type)}
        return tuple(t.to(types[o.dtype]) if isinstance(t, torch.Tensor) and t.dtype in COMPUTE_DTYPES else t
                     for o, t in zip(self._operator.inputs, tensors))

    def __reduce__(self):
        return program, (self.__doc__,)

    @property
    def backward_text(self) -> str:
        """The programs that the backward runs."""
        derived = self._operator.derived
        return "".join(p.text for p in derived.backward) if derived.backward else ""

    def __repr__(self):
        return f"<coda.torch.program {self.__name__}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}>"


def program(text: str) -> ProgramFunction:
    """Makes a differentiable function of the one program or block in `text` (docs/language.md).

    The backward is derived by the compiler; gradients that nothing asks for are not computed. Raises coda.InvalidError with
    line, column and advice if the text is wrong. Call it once, at module level: it registers a torch operator.
    """
    if not isinstance(text, str):
        raise TypeError(f"coda.torch.program takes the text of a program, not {type(text).__name__}")
    module = Module.parse(text)
    if len(module) != 1:
        raise ValueError(f"coda.torch.program takes one program; the text has {len(module)}")
    canonical = module[0].text
    with _lock:
        if canonical not in _made:
            name = f"{module[0].name}_{hashlib.sha256(canonical.encode()).hexdigest()[:8]}"
            _made[canonical] = ProgramFunction(Operator(name, canonical), canonical)
        return _made[canonical]
