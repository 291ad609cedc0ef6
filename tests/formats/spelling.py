"""Formats as text: the type that msgspec encodes, without any name that only Python sees.

type=Cancel: id int, now? bool          a tagged message; `?`: it may be left out
job: id int, spec job spec, …           a struct without a tag goes by a name given to it here
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect


def spelled(roots: Mapping[str, Any], names: Mapping[type, str]) -> list[str]:
    """One line for each root and each struct that can be reached from it."""
    lines: dict[str, str] = {}
    for root, kind in roots.items():
        found = inspect.type_info(kind)
        lines[root] = f"{root} = {_spell(found, names)}"
        for struct in _structs(found):
            line = _line(struct, names)
            known = lines.setdefault(_name(struct, names), line)
            assert known == line, f"two formats of one name: {known} and {line}"
    return sorted(lines.values())


def spelled_dataclass(name: str, kind: type[Any]) -> str:
    """The JSON of a shim's file: field names and types."""
    missing = dataclasses.MISSING
    fields = (
        f"{one.name}{'' if one.default is missing else '?'} {one.type}"
        for one in dataclasses.fields(kind)
    )
    return f"{name}: {', '.join(fields)}"


def _line(struct: inspect.StructType, names: Mapping[type, str]) -> str:
    fields = (
        f"{one.encode_name}{'' if one.required else '?'} {_spell(one.type, names)}"
        for one in struct.fields
    )
    shape = " (a list)" if struct.array_like else ""
    return f"{_name(struct, names)}{shape}: {', '.join(fields)}".rstrip()


def _name(struct: inspect.StructType, names: Mapping[type, str]) -> str:
    if struct.tag is not None:
        return f"{struct.tag_field}={struct.tag}"
    return names[struct.cls]


def _spell(kind: inspect.Type, names: Mapping[type, str]) -> str:
    match kind:
        case inspect.StructType():
            return _name(kind, names)
        case inspect.UnionType(types=types):
            return " | ".join(sorted(_spell(one, names) for one in types))
        case inspect.DictType(key_type=key, value_type=value):
            return f"{{{_spell(key, names)}: {_spell(value, names)}}}"
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return f"[{_spell(item, names)} …]"
        case inspect.TupleType(item_types=items):
            return f"[{' '.join(_spell(one, names) for one in items)}]"
        case inspect.LiteralType(values=values):
            return " | ".join(sorted(map(repr, values)))
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def _structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    match kind:
        case inspect.StructType():
            yield kind
            inner: tuple[inspect.Type, ...] = tuple(one.type for one in kind.fields)
        case inspect.UnionType(types=types):
            inner = types
        case inspect.DictType(key_type=key, value_type=value):
            inner = (key, value)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            inner = (item,)
        case inspect.TupleType(item_types=items):
            inner = items
        case _:
            inner = ()
    for one in inner:
        yield from _structs(one)
