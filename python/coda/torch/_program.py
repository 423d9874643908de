"""A user's own program or block as a differentiable function."""

import hashlib
import threading

from .._program import Module
from ._operator import Operator

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
        self.__name__, self.__doc__ = self.name, text

    def __call__(self, *tensors, **named):
        numbers = [float(named.pop(p, default)) for p, default in self.parameters.items()]
        if named:
            missing = self.inputs[len(tensors):]
            unknown = [n for n in named if n not in missing]
            if unknown:
                raise TypeError(f"{self.name}() got an unexpected keyword argument {unknown[0]!r}; it takes "
                                f"{', '.join(self.inputs + tuple(self.parameters))}")
            tensors = (*tensors, *(named[n] for n in missing if n in named))
        if len(tensors) != len(self.inputs):
            raise TypeError(f"{self.name}() takes {len(self.inputs)} tensors ({', '.join(self.inputs)}), but {len(tensors)} "
                            "were given")
        self._operator.check(tensors)
        return self._operator.call(*tensors, *numbers)

    def __reduce__(self):
        return program, (self.__doc__,)

    @property
    def backward_text(self) -> str:
        """The programs that the backward runs."""
        derived = self._operator.derived
        return "".join(p.text for p in derived.backward) if derived.backward else ""

    def __repr__(self):
        return f"<coda.torch.program {self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}>"


def program(text: str) -> ProgramFunction:
    """Makes a differentiable function of the one program or block in `text` (docs/language.md).

    The backward is derived by the compiler; gradients that nothing asks for are not computed. Raises coda.InvalidError with
    line, column and advice if the text is wrong. Call it once, at module level: it registers a torch operator.
    """
    module = Module.parse(text)
    if len(module) != 1:
        raise ValueError(f"coda.torch.program takes one program; the text has {len(module)}")
    canonical = module[0].text
    with _lock:
        if canonical not in _made:
            name = f"{module[0].name}_{hashlib.sha256(canonical.encode()).hexdigest()[:8]}"
            _made[canonical] = ProgramFunction(Operator(name, canonical), canonical)
        return _made[canonical]
