"""Modules and programs: text, operands, axes, and what the compiler derives from them."""

import ctypes
import dataclasses
import functools
import os

from ._errors import check
from ._library import (DTYPES, AxisStruct, CostStruct, DimsStruct, ErrorStruct, MAX_DIMS, OperandStruct,
                       RewriteOptionsStruct, c_double, c_int64, c_void_p, load)


@dataclasses.dataclass(frozen=True)
class Operand:
    """One `in` or `out` of a program, in the order of the text."""

    name: str
    role: str  # "in", "out", "accumulate" (`+=`) or "patch" (`out X[t]`)
    dtype: str
    dims: tuple  # the declared sizes as text: "M", "N/128", "64"


def dims_struct(dims) -> DimsStruct:
    """Sizes by axis name as the library takes them."""
    made = DimsStruct()
    if len(dims) > MAX_DIMS:
        raise ValueError(f"{len(dims)} sizes of axes; at most {MAX_DIMS}")
    made.count = len(dims)
    for item, (axis, size) in zip(made.item, dims.items()):
        item.axis, item.size = axis.encode(), size
    return made


class Module:
    """A parsed text: one or more programs and blocks, by index or by name. Immutable."""

    def __init__(self, handle, owned=True):
        self._handle = handle
        self._owned = owned
        library = load()
        self._programs = [Program(self, library.coda_module_program(handle, i))
                          for i in range(library.coda_module_size(handle))]

    def __del__(self):
        if getattr(self, "_owned", False):
            load().coda_module_free(self._handle)

    @classmethod
    def parse(cls, text: str, file_name: str | None = None) -> "Module":
        """Parses and checks a text. Raises InvalidError with every mistake found, each with line, column and advice."""
        data = text.encode()
        return cls(_make("coda_module_parse", data, len(data), None if file_name is None else os.fsencode(file_name)))

    @classmethod
    def load(cls, path) -> "Module":
        """Reads a file and parses it."""
        return cls(_make("coda_module_load", os.fsencode(path)))

    def retype(self, source: str, to: str) -> "Module":
        """A copy in which operands of type `source` have type `to`: the bf16 programs as f32 ones, say."""
        return Module(_make("coda_module_retype", self._handle, dtype_code(source), dtype_code(to)))

    def __len__(self):
        return len(self._programs)

    def __iter__(self):
        return iter(self._programs)

    def __getitem__(self, key) -> "Program":
        if isinstance(key, int):
            return self._programs[key]
        for program in self._programs:
            if program.name == key:
                return program
        raise KeyError(f"no program {key!r}; this module has {', '.join(p.name for p in self._programs)}")

    def __repr__(self):
        return f"<coda.Module: {', '.join(p.name for p in self._programs)}>"


class Program:
    """One program or block of a module, which it keeps alive. Immutable."""

    def __init__(self, module, handle):
        library = load()
        self.handle = handle
        self.module: Module = module  # kept alive: the program lies in its memory
        self.name: str = library.coda_program_name(handle).decode()
        self.is_block: bool = bool(library.coda_program_is_block(handle))

    @functools.cached_property
    def operands(self) -> tuple:
        """Its `in`s and `out`s, in the order in which a launch takes them."""
        library, made = load(), []
        for i in range(library.coda_program_operand_count(self.handle)):
            o = OperandStruct()
            library.coda_program_operand(self.handle, i, ctypes.byref(o))
            made.append(Operand(o.name.decode(), ("in", "out", "accumulate", "patch")[o.role], DTYPES[o.dtype],
                                tuple(o.dim[k].value.decode() for k in range(o.rank))))
        return tuple(made)

    @property
    def condition(self):
        """The operand of `when`, by name: a launch does nothing where all of its elements are 0. None: there is none."""
        index = load().coda_program_condition(self.handle)
        return None if index < 0 else self.operands[index].name

    @functools.cached_property
    def axes(self) -> dict:
        """Axis name to "free", "derived" or "fixed" (needed when a kernel is created)."""
        library, made = load(), {}
        for i in range(library.coda_program_axis_count(self.handle)):
            a = AxisStruct()
            library.coda_program_axis(self.handle, i, ctypes.byref(a))
            made[a.name.decode()] = "fixed" if a.fixed else "derived" if a.derived else "free"
        return made

    @functools.cached_property
    def parameters(self) -> dict:
        """Name of each `param` to its default."""
        library, made, value = load(), {}, c_double()
        for i in range(library.coda_program_parameter_count(self.handle)):
            name = library.coda_program_parameter(self.handle, i, ctypes.byref(value)).decode()
            made[name] = value.value
        return made

    @functools.cached_property
    def text(self) -> str:
        """The program in canonical form."""
        pointer = load().coda_program_text(self.handle)
        if not pointer:
            raise MemoryError("coda_program_text")
        try:
            return ctypes.string_at(pointer).decode()
        finally:
            load().coda_free(pointer)

    def shape(self, operand: str, **dims) -> tuple:
        """The shape of an operand under sizes of the axes."""
        index = [o.name for o in self.operands].index(operand)
        shape, error, sizes = (c_int64 * 2)(), ErrorStruct(), dims_struct(dims)
        check(load().coda_program_operand_shape(self.handle, index, ctypes.byref(sizes), shape, ctypes.byref(error)),
              error)
        return tuple(shape[:len(self.operands[index].dims)])

    def cost(self, **dims) -> dict:
        """Arithmetic and bytes of one launch, fused and with one kernel an operator."""
        cost, error, sizes = CostStruct(), ErrorStruct(), dims_struct(dims)
        check(load().coda_program_cost(self.handle, ctypes.byref(sizes), ctypes.byref(cost), ctypes.byref(error)), error)
        return {name: getattr(cost, name) for name, _ in CostStruct._fields_}

    def differentiate(self, wrt=None, save=None) -> Module:
        """The backward of a program, as programs in the order to run. `wrt`, `save`: names, or None for the defaults."""
        join = lambda names: None if names is None else ",".join(names).encode()  # noqa: E731
        return Module(_make("coda_differentiate", self.handle, join(wrt), join(save)))

    def rewrite(self, backward=False, allow_passes=False, save=None, exponentials=False) -> tuple:
        """A block as programs in the order to run, and a text that says which rule did what. `save`: names of values that the
        forward keeps and the backward would else compute again; None for the default. `exponentials`: logits of a
        cross-entropy are stored as such (coda.h)."""
        names = None if save is None else ",".join(save).encode()
        options, report = RewriteOptionsStruct(backward, allow_passes, 0, None, names, exponentials), c_void_p()
        module = Module(_make("coda_rewrite", self.handle, ctypes.byref(options), error_after=(ctypes.byref(report),)))
        text = ctypes.string_at(report.value).decode() if report.value else ""
        load().coda_free(report)
        return module, text

    def unfuse(self) -> Module:
        """The same mathematics with one program an operator."""
        return Module(_make("coda_unfuse", self.handle))

    def __repr__(self):
        return f"<coda.Program {self.name}>"


@functools.lru_cache(None)
def standard_module() -> Module:
    """The programs of `programs/`, which the library carries."""
    return Module(_make("coda_standard_module"), owned=False)


def dtype_code(name: str) -> int:
    """The library's number of a type."""
    try:
        return DTYPES.index(name)
    except ValueError:
        raise ValueError(f"no type {name!r}; the types are {', '.join(DTYPES)}") from None


def _make(function, *arguments, error_after=()):
    """Calls a constructor that writes a handle; raises its error."""
    handle, error = c_void_p(), ErrorStruct()
    status = getattr(load(), function)(*arguments, ctypes.byref(handle), *error_after, ctypes.byref(error))
    check(status, error)
    return handle.value
