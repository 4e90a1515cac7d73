"""What is wrong with the types of a call that the dispatcher refused: the argument and its rule.

The dispatcher's own message prints the value, which may be a whole array, and the schema. This is
asked only after a call has failed.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from .quoting import MOST, printable, shown

_RULES = {
    "Tensor": "a torch.Tensor",
    "Optional[Tensor]": "a torch.Tensor or None",
    "int": "an int",
    "Optional[int]": "an int or None",
    "Optional[List[int]]": "an int, a list of ints or None",
    "float": "a float",
    "bool": "a bool",
    "str": "a str",
}
_ONE_DIMENSION = "one dimension (an int), or None for all elements"


def _is_index(value: Any) -> bool:
    try:
        operator.index(value)
    except (TypeError, RuntimeError):  # the latter of a tensor of several elements
        return False
    return True


def _fits(kind: str, value: Any) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(kind.removeprefix("Optional[").removesuffix("]"), value)
    if kind == "List[int]":
        if isinstance(value, list | tuple):
            return all(_fits("int", item) for item in value)
        return isinstance(value, int | torch.SymInt)
    if kind == "int":
        return isinstance(value, torch.SymInt) or _is_index(value)
    if kind == "float":
        return hasattr(value, "__float__")
    known = {"Tensor": torch.Tensor, "bool": bool, "str": str}
    return kind not in known or isinstance(value, known[kind])


def _described(value: Any) -> str:
    name = printable(type(value).__name__[:MOST])
    if value is None or isinstance(value, torch.Tensor):
        return name
    text = shown(value)
    return f"{name} {text}" if len(text) <= 40 else name


def takes(schema: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether the number and the names of the arguments are those of the schema."""
    names = [argument.name for argument in schema.arguments]
    positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    given = {*positional[: len(args)], *options}
    needed = {argument.name for argument in schema.arguments if not argument.has_default_value()}
    return len(args) <= len(positional) and needed <= given <= set(names)


def type_error(
    schemas: list[Any], args: tuple[Any, ...], options: dict[str, Any]
) -> TypeError | None:
    """What is wrong with the first argument whose type an op's schema does not take, if one is.

    Stand-ins of tracers (proxies) count as what they stand for. None also where no schema takes so
    many arguments, or takes their names: the dispatcher says that well.
    """
    schema = next((one for one in schemas if takes(one, args, options)), None)
    if schema is None:
        return None
    name = schema.name.partition("::")[2]
    name = f"{name}.{schema.overload_name}" if schema.overload_name else name
    for index, argument in enumerate(schema.arguments):
        if index >= len(args) and argument.name not in options:
            continue
        value = args[index] if index < len(args) else options[argument.name]
        stands_in = hasattr(value, "__torch_function__") and not isinstance(value, torch.Tensor)
        kind = str(argument.type)
        if stands_in or _fits(kind, value):
            continue
        positions = name in ("argmax", "argmin") and argument.name == "dim"
        rule = _ONE_DIMENSION if positions else _RULES.get(kind, kind)
        return TypeError(f"{name}: {argument.name} must be {rule}, got {_described(value)}")
    return None
