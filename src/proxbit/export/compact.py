"""The same graph in fewer bytes: no constant twice, no defaults written out, short names."""

from __future__ import annotations

from itertools import count
from typing import Any

from proxbit.export.graphs import Graph, attributes


def compact(graph: Graph, opset: int) -> None:
    """Make a finished graph small: in a small file, names and nodes are half of it.

    Args:
        graph: Without anything that nobody reads.
        opset: The version of the standard operators, which says what their defaults are.
    """
    _name_layers(graph)
    for node in graph.proto.node:
        if not node.domain:
            _leave_out_defaults(graph, node, opset)
    _share(graph)
    _shorten(graph)


def _name_layers(graph: Graph) -> None:
    """Name the standard nodes that read a layer's weight after it, and no others; none twice."""
    known = {node.name for node in graph.proto.node if node.domain}
    for node in graph.proto.node:
        if not node.domain:
            weights = [name for name in node.input if name.endswith(".weight")]
            layer = weights[0].removesuffix(".weight") if weights else ""
            node.name = "" if layer in known else layer
            known.add(layer)


def _share(graph: Graph) -> None:
    """Hold constants of the same content once."""
    first: dict[bytes, str] = {}
    kept: dict[str, str] = {}
    for held in graph.proto.initializer:
        unnamed = type(held).FromString(held.SerializeToString())
        unnamed.ClearField("name")
        kept[held.name] = first.setdefault(unnamed.SerializeToString(), held.name)
    for node in graph.proto.node:
        node.input[:] = [kept.get(name, name) for name in node.input]
    graph.sweep()


def _leave_out_defaults(graph: Graph, node: Any, opset: int) -> None:
    from onnx import defs, helper

    known = defs.get_schema(node.op_type, opset, "").attributes.items()
    held = {name: each.default_value for name, each in known if each.default_value.type}
    usual = {name: helper.get_attribute_value(each) for name, each in held.items()}
    found = attributes(node)
    if node.op_type == "Reshape" and _is_without_zeros(graph.array(node.input[1])):
        usual["allowzero"] = found.get("allowzero")  # it says what a length of 0 means
    kept = [each for each in node.attribute if usual.get(each.name) != found[each.name]]
    Graph.replace(node.attribute, kept)


def _is_without_zeros(shape: Any) -> bool:
    return shape is not None and bool(shape.all())


def _shorten(graph: Graph) -> None:
    """Number all values but those that come in and go out; layers keep their names as nodes."""
    taken = graph.given | {value.name for value in graph.proto.input} | {""}
    made = [name for node in graph.proto.node for name in node.output]
    free = (name for i in count() if (name := f"{i:x}") not in taken)
    names = [name for name in (*graph.constants, *made) if name not in taken]
    short = dict(zip(names, free, strict=False))
    for node in graph.proto.node:
        for field in (node.input, node.output):
            field[:] = [short.get(name, name) for name in field]
    for value in (*graph.proto.value_info, *graph.proto.initializer):
        value.name = short.get(value.name, value.name)
    graph.constants = {each.name: each for each in graph.proto.initializer}
    graph.look()
