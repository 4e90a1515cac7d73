"""Which layers of a module read the same tensor, found by reading the source of its forward.

    query = self.q_proj(hidden_states).view(shape)
    key = self.k_proj(hidden_states).view(shape)

reads one value of `hidden_states` twice, and nothing between the two calls can write it. That is
what this module proves, for any class whose source is at hand, so that no list of model classes is
needed. What it cannot follow (loops, calls in a comprehension, a write of any kind between the
calls) it takes for a reason not to join.

A variable holds a value; an assignment gives it another. `a = b if c else d` and two branches that
meet leave a variable that may hold either, which is how attention layers choose between their own
hidden states and an encoder's: such a variable has a value of its own, and the values it may be.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")

# Attributes of a tensor that are not the tensor's data.
_METADATA = {"shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "size", "dim", "numel"}
_PURE_BUILTINS = {"isinstance", "len", "getattr", "hasattr", "int", "float", "bool", "max", "min"}
_MODES = {"set_grad_enabled", "set_autocast_enabled", "inference_mode"}
_PURE_MODULES = {"torch", "F", "math", "functional", "np"}


@dataclass(frozen=True)
class Siblings:
    """Layers, by attribute name in the order of their calls, that read one value.

    surely: those that read one variable. The others do where their variable holds the same tensor,
        as they do in self-attention and do not in cross-attention.
    """

    names: tuple[str, ...]
    surely: tuple[str, ...]


@dataclass(frozen=True)
class _Value:
    """What a variable holds: an identity, and the identities that it may be another name for."""

    identity: int
    maybe: frozenset[int]
    sources: frozenset[int] = frozenset()  # values that it may be a view of


@dataclass
class _Call:
    name: str
    value: _Value
    writes: dict[int, int]  # of each value that it may be or share: how often it had been written
    branches: tuple[tuple[int, int], ...]  # (statement, branch) of every `if` around it
    context: int | None  # the `with` statement around it


@dataclass
class _Reader:
    """Walks the statements of one function in order."""

    layers: frozenset[str]
    module: str  # what the function calls its own module: "self"
    variables: dict[str, _Value] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    writes: Counter[int] = field(default_factory=Counter)
    branches: tuple[tuple[int, int], ...] = ()
    context: int | None = None
    repeated: int = 0  # depth of loops, comprehensions, lambdas and try blocks
    lost: set[str] = field(default_factory=set)  # layers called where it cannot follow
    identities: Iterator[int] = field(default_factory=itertools.count)

    # ---- values ----

    def fresh(self, sources: frozenset[int] = frozenset()) -> _Value:
        identity = next(self.identities)
        return _Value(identity, frozenset([identity]), sources)

    def either(self, *values: _Value) -> _Value:
        """A value that is one of `values`."""
        if len({value.identity for value in values}) == 1:
            return values[0]
        new = self.fresh(frozenset().union(*(value.sources for value in values)))
        maybe = new.maybe.union(*(value.maybe for value in values))
        return _Value(new.identity, maybe, new.sources)

    def of(self, name: str) -> _Value:
        if name not in self.variables:
            self.variables[name] = self.fresh()
        return self.variables[name]

    def result(self, node: ast.expr) -> _Value:
        """What an expression evaluates to."""
        if isinstance(node, ast.Name):
            return self.of(node.id)
        if isinstance(node, ast.IfExp):
            return self.either(self.result(node.body), self.result(node.orelse))
        return self.fresh(self.reached(node))

    def reached(self, node: ast.AST) -> frozenset[int]:
        """The values whose data the result of `node` may share."""
        if isinstance(node, ast.Name):
            value = self.of(node.id)
            return value.maybe | value.sources
        if isinstance(node, ast.Attribute) and node.attr in _METADATA:
            return frozenset()
        if isinstance(node, ast.Call) and self.layer_of(node) is not None:
            return frozenset()  # a product is a new tensor
        return frozenset().union(*(self.reached(child) for child in ast.iter_child_nodes(node)))

    def written(self, values: frozenset[int]) -> None:
        self.writes.update(values)

    # ---- expressions ----

    def layer_of(self, node: ast.Call) -> str | None:
        target = node.func
        if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            return None
        own = target.value.id == self.module and target.attr in self.layers
        return target.attr if own else None

    def expression(self, node: ast.AST | None) -> None:
        """Note the calls of layers and the writes in an expression, in order of evaluation."""
        if node is None:
            return
        if isinstance(
            node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda
        ):
            self.repeated += 1
            self.children(node)
            self.repeated -= 1
        elif isinstance(node, ast.IfExp):
            self.expression(node.test)
            for branch, part in enumerate((node.body, node.orelse)):
                self.within(node, branch, functools.partial(self.expression, part))
        elif isinstance(node, ast.NamedExpr):
            self.expression(node.value)
            self.bind(node.target, self.result(node.value))
        elif isinstance(node, ast.Call):
            self.children(node)
            self.call(node)
        else:
            self.children(node)

    def children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self.expression(child)

    def call(self, node: ast.Call) -> None:
        layer = self.layer_of(node)
        if layer is not None:
            argument = node.args[0] if len(node.args) == 1 and not node.keywords else None
            if not isinstance(argument, ast.Name) or self.repeated:
                self.lost.add(layer)
                return
            value = self.of(argument.id)
            seen = {i: self.writes[i] for i in value.maybe | value.sources}
            self.calls.append(_Call(layer, value, seen, self.branches, self.context))
            return
        if ast.unparse(node.func).rpartition(".")[2] in _MODES:
            self.context = id(node)
        self.written(self.written_by(node))

    def written_by(self, node: ast.Call) -> frozenset[int]:
        """The values that a call which is no layer's may write."""
        given = frozenset().union(*(self.reached(a) for a in (*node.args, *node.keywords)))
        target = node.func
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name.endswith("_") and not name.endswith("__"):  # torch's names of what works in place
            return given | self.reached(target)
        if isinstance(target, ast.Name):
            return frozenset() if name in _PURE_BUILTINS else given
        if any(keyword.arg in ("out", "inplace") for keyword in node.keywords):
            return given
        root: Any = target
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in _PURE_MODULES:
            return frozenset()
        # A method of a tensor without the underscore writes nothing; a module of the model may.
        return given if isinstance(root, ast.Name) and root.id == self.module else frozenset()

    # ---- statements ----

    def bind(self, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Name):
            self.variables[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self.bind(part, self.fresh(value.maybe | value.sources))
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value)
        elif isinstance(target, ast.Subscript):
            self.expression(target)
            self.written(self.reached(target.value))

    def within(self, node: ast.AST, branch: int, run: Callable[[], Result]) -> Result:
        outer = self.branches
        self.branches = (*outer, (id(node), branch))
        result = run()
        self.branches = outer
        return result

    def block(self, statements: list[ast.stmt]) -> bool:
        """Whether control comes out at the end."""
        for statement in statements:
            self.statement(statement)
            if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
                return False
        return True

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            self.expression(node.value)
            value = self.result(node.value)
            for target in node.targets:
                self.bind(target, value)
        elif isinstance(node, ast.AnnAssign):
            self.expression(node.value)
            if node.value is not None:
                self.bind(node.target, self.result(node.value))
        elif isinstance(node, ast.AugAssign):
            self.expression(node.value)
            self.written(self.reached(node.target))
        elif isinstance(node, ast.If):
            self.choice(node)
        elif isinstance(node, ast.For | ast.While | ast.Try | ast.Match):
            self.opaque(node)
        elif isinstance(node, ast.With):
            outer, self.context = self.context, id(node)
            for item in node.items:
                self.expression(item.context_expr)
            self.block(node.body)
            self.context = outer
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.opaque(node)
        else:
            self.children(node)

    def choice(self, node: ast.If) -> None:
        self.expression(node.test)
        before, after = dict(self.variables), []
        for branch, body in enumerate((node.body, node.orelse)):
            self.variables = dict(before)
            if self.within(node, branch, functools.partial(self.block, body)):
                after.append(self.variables)
        if not after:
            after = [before]
        names = set().union(*after)
        self.variables = {
            name: self.either(*(state[name] for state in after if name in state)) for name in names
        }

    def opaque(self, node: ast.stmt) -> None:
        """A statement whose parts run any number of times: all that it names may be written."""
        self.repeated += 1
        for child in ast.walk(node):
            if isinstance(child, ast.Call) and (layer := self.layer_of(child)) is not None:
                self.lost.add(layer)
            elif isinstance(child, ast.Name):
                self.written(self.reached(child))
                if not isinstance(child.ctx, ast.Load):
                    self.variables[child.id] = self.fresh()
        self.repeated -= 1


def siblings(forward: Callable[..., Any], layers: frozenset[str]) -> list[Siblings]:
    """The sets of `layers` (attributes of the module) that `forward` gives the same tensor.

    Raises:
        ValueError: the source of `forward` cannot be read.
    """
    return _found(inspect.unwrap(forward), layers)


@functools.lru_cache(maxsize=1024)
def _found(function: Callable[..., Any], layers: frozenset[str]) -> list[Siblings]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError) as error:
        raise ValueError(f"its source cannot be read ({error})") from None
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or not definition.args.args:
        raise ValueError("its source is not that of a method")
    reader = _Reader(layers, definition.args.args[0].arg)
    reader.block(definition.body)
    once = Counter(call.name for call in reader.calls)
    calls = [c for c in reader.calls if once[c.name] == 1 and c.name not in reader.lost]
    groups: list[list[_Call]] = []
    for call in calls:
        group = next((g for g in groups if all(_same(call, other) for other in g)), None)
        if group is None:
            groups.append([call])
        else:
            group.append(call)
    return [
        Siblings(tuple(call.name for call in group), _surely(group))
        for group in groups
        if len(group) > 1
    ]


def _surely(group: list[_Call]) -> tuple[str, ...]:
    """The largest set of calls in `group` that read one variable."""
    (identity, _), *_ = Counter(call.value.identity for call in group).most_common()
    return tuple(call.name for call in group if call.value.identity == identity)


def _same(a: _Call, b: _Call) -> bool:
    """Whether two calls can read one value that nothing wrote between them."""
    common = a.value.maybe & b.value.maybe
    exclusive = {statement for statement, _ in a.branches} & {s for s, _ in b.branches}
    if any(dict(a.branches)[s] != dict(b.branches)[s] for s in exclusive):
        return False
    sources = a.value.sources & b.value.sources
    return (
        a.context == b.context
        and any(a.writes[i] == b.writes[i] for i in common)
        and all(a.writes[i] == b.writes[i] for i in sources)
    )
