"""Layers whose owner takes their weight without calling them, seen in its source.

Such a layer must not be swapped: nobody would call the binary one. timm's BEiT, EVA and SwinV2,
torchvision's Swin and the state-space models of transformers have them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from torch import nn

# Reading these of a weight is not reading the weight.
_ABOUT = {"dtype", "device", "shape", "size", "dim", "ndim", "numel", "requires_grad", "is_cuda"}
_ASKING = {"isinstance", "hasattr"}


def read_directly(model: nn.Module) -> dict[str, str]:
    """Names of layers whose weight a forward reads, with the class that reads it.

    Only what ``forward`` reaches counts, and no branch that the owner's own attributes rule out.
    Code without source, and weights read through another variable, are not seen.
    """
    found = {}
    for name, module in model.named_modules():
        for path in _paths(module):
            full = f"{name}.{path}" if name else path
            found[full] = type(module).__name__
    return found


def _paths(module: nn.Module) -> set[str]:
    """The children whose weight a module's forward reads: {"qkv"} for ``self.qkv.weight``."""
    kind = type(module)
    if kind.__module__.startswith("torch."):
        return set()
    found: set[str] = set()
    todo, seen = ["forward"], set()
    while todo:
        name = todo.pop()
        function = getattr(kind, name, None)
        if name in seen or not callable(function):
            continue
        seen.add(name)
        for node in _live(_tree(function), module, function):
            if isinstance(node, ast.Call) and (path := _path(node.func)) and "." not in path:
                todo.append(path)
            elif (path := _path(node)).endswith(".weight") and _is_read(node):
                found.add(path.removesuffix(".weight"))
    return found


def _is_read(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


@cache
def _tree(function: Callable[..., Any]) -> ast.AST:
    """The source of a function; nothing where there is none, or a lambda, cut out of its line."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _live(node: ast.AST, module: nn.Module, function: Any) -> Iterator[ast.AST]:
    """The nodes below that may run, without those that only ask about a tensor."""
    for child in ast.iter_child_nodes(node):
        called = getattr(child.func, "id", "") if isinstance(child, ast.Call) else ""
        if called in _ASKING or (isinstance(child, ast.Attribute) and child.attr in _ABOUT):
            continue
        if isinstance(child, ast.If | ast.IfExp):
            truth = _truth(child.test, module, function)
            parts = _branches(child, truth)
            yield from _live(ast.Module(parts, []), module, function)
            if truth is not None and isinstance(parts[-1], ast.Return | ast.Raise):
                break  # the function leaves here
            continue
        yield child
        yield from _live(child, module, function)


def _branches(node: ast.If | ast.IfExp, truth: bool | None) -> list[Any]:
    """The condition, and what may follow from it."""
    parts: list[Any] = [node.test]
    if truth is not False:
        parts += node.body if isinstance(node.body, list) else [node.body]
    if truth is not True:
        parts += node.orelse if isinstance(node.orelse, list) else [node.orelse]
    return parts


def _truth(test: ast.expr, module: nn.Module, function: Any) -> bool | None:
    """The value of a condition on the module's own attributes; None where it is open."""
    if isinstance(test, ast.BoolOp):
        parts = [_truth(each, module, function) for each in test.values]
        decided = isinstance(test.op, ast.Or)
        if decided in parts:
            return decided
        return None if None in parts else not decided
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, module, function)
        return None if inner is None else not inner
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.IsNot):
        path, other = _path(test.left), test.comparators[0]
        if path and "." not in path and getattr(other, "value", 0) is None:
            is_none = getattr(module, path, None) is None
            return is_none == isinstance(test.ops[0], ast.Is)
    value = _value(test, module, function)
    return value if isinstance(value, bool) else None


def _value(test: ast.expr, module: nn.Module, function: Any) -> object:
    """An attribute of the module, or a name of the file; ``training`` is open: it changes."""
    if isinstance(test, ast.Name):
        inner = inspect.unwrap(function)
        local = test.id in getattr(getattr(inner, "__code__", None), "co_varnames", ())
        return None if local else getattr(inner, "__globals__", {}).get(test.id)
    value: Any = module
    for part in _path(test).split("."):
        value = None if part in ("", "training") else getattr(value, part, None)
    return value


def _path(node: ast.AST) -> str:
    """'a.b' for ``self.a.b``; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed(parts)) if isinstance(node, ast.Name) and node.id == "self" else ""
