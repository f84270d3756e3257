"""Protobuf messages as rows, from a descriptor set.

A type that contains itself becomes JSON where it does.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import Descriptor

    Take = Callable[[Any], Any]

_MADE_BY = "make it with protoc --include_imports --descriptor_set_out=FILE"

_F = FieldDescriptor
_SIMPLE = {
    _F.CPPTYPE_INT32: pa.int32(),
    _F.CPPTYPE_INT64: pa.int64(),
    _F.CPPTYPE_UINT32: pa.int64(),
    _F.CPPTYPE_UINT64: pa.decimal128(20),
    _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_DOUBLE: pa.float64(),
    _F.CPPTYPE_BOOL: pa.bool_(),
    _F.CPPTYPE_ENUM: pa.string(),
}


def decoder(content: bytes, name: str) -> tuple[pa.DataType, Callable[[bytes], Any]]:
    """The type of rows of message ``name``, and what makes one of a payload.

    Raises ``ConfigError``.
    """
    files = descriptor_pb2.FileDescriptorSet()
    pool = DescriptorPool()
    try:
        files.ParseFromString(content)
        for file in files.file:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(name)
    except (DecodeError, TypeError) as error:
        raise ConfigError(f"this is no descriptor set: {error}", hint=_MADE_BY) from error
    except KeyError as error:
        names = [
            f"{file.package}.{m.name}".lstrip(".") for file in files.file for m in file.message_type
        ]
        raise ConfigError(
            f"no message {name} in the descriptor set", hint=f"there are: {', '.join(names)}"
        ) from error
    kind, take = _message(descriptor, frozenset())
    make = message_factory.GetMessageClass(descriptor)

    def decode(payload: bytes) -> Any:
        return take(make.FromString(payload))

    return kind, decode


def _message(descriptor: Descriptor, outer: frozenset[str]) -> tuple[pa.DataType, Take]:
    """The type of a message within others, and what makes a value of it."""
    if descriptor.full_name in outer or not descriptor.fields:
        return pa.string(), lambda value: json_format.MessageToJson(value, indent=None)
    inner = outer | {descriptor.full_name}
    fields = [(field, *_field(field, inner)) for field in descriptor.fields]
    kind = pa.struct([(field.name, of_field) for field, of_field, _ in fields])

    def take(value: Any) -> dict[str, Any]:
        return {
            field.name: make(getattr(value, field.name))
            if not field.has_presence or value.HasField(field.name)
            else None
            for field, _, make in fields
        }

    return kind, take


def _field(field: FieldDescriptor, outer: frozenset[str]) -> tuple[pa.DataType, Take]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key_kind, key = _value(field.message_type.fields_by_name["key"], outer)
        item_kind, item = _value(field.message_type.fields_by_name["value"], outer)
        return pa.map_(key_kind, item_kind), lambda entries: [
            (key(k), item(v)) for k, v in entries.items()
        ]
    kind, one = _value(field, outer)
    if field.is_repeated:
        return pa.list_(kind), lambda values: [one(value) for value in values]
    return kind, one


def _value(field: FieldDescriptor, outer: frozenset[str]) -> tuple[pa.DataType, Take]:
    match field.cpp_type:
        case _F.CPPTYPE_MESSAGE:
            assert field.message_type is not None
            return _message(field.message_type, outer)
        case _F.CPPTYPE_STRING:
            return (
                pa.binary() if field.type == _F.TYPE_BYTES else pa.string()
            ), lambda value: value
        case _F.CPPTYPE_ENUM:
            assert field.enum_type is not None
            names = field.enum_type.values_by_number
            return pa.string(), lambda value: names[value].name if value in names else str(value)
        case _F.CPPTYPE_UINT64:
            return _SIMPLE[field.cpp_type], Decimal
        case _:
            return _SIMPLE[field.cpp_type], lambda value: value
