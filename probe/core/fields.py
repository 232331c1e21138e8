"""Kinds of value in a configuration: their valid values, and their descriptions in the reference and in errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import annotated_types as ranges
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    Strict,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from probe.core.language import joined, message


class Section(BaseModel):
    """Mapping of known keys, read once and never changed; the docstring under each field is its reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Form(NamedTuple):
    """Description of a kind of value. As metadata of an annotation it replaces the description made from it."""

    type: str
    range: str = ""
    phrase: str = ""
    """Phrase for the expected value in errors, if it is not an article, the type and the range."""

    @property
    def expected(self) -> str:
        article = "an" if self.type[0] in "aeiou" else "a"
        return self.phrase or joined(" ", filter(None, (message(f"{article} {self.type}"), self.range)))


@dataclass(frozen=True)
class Names:
    """Metadata that admits these strings only."""

    names: tuple[str, ...]
    also: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Names that users may write for one of these."""

    @property
    def listed(self) -> str:
        """Names as users read them, in quotes if they contain commas."""
        return ", ".join(f'"{name}"' if "," in name else name for name in self.names)

    def check(self, value: str) -> str:
        if value not in self.names:
            raise PydanticCustomError(
                "unknown_name",
                "unknown name",
                {"names": self.names, "also": self.also, "expected": message("one of {names}", names=self.listed)},
            )
        return value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


@dataclass(frozen=True)
class Variants:
    """Metadata of a mapping whose keys depend on the name next to it."""

    models: Mapping[str, type[Section]]


def wrong(expected: str) -> PydanticCustomError:
    """Return the error of a validator that expected another value."""
    return PydanticCustomError("expected", "expected {expected}", {"expected": expected})


def not_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check that ``values`` has elements. Pydantic's own check of the length counts wrong elements as missing."""
    if not values:
        raise PydanticCustomError("empty", "empty")
    return values


def not_blank(text: str) -> str:
    """Check that ``text`` has a character that is no space."""
    if not text.strip():
        raise wrong(message("a string that is not empty"))
    return text


def address_like(example: str) -> AfterValidator:
    """Return the check of an address of HTTP."""

    def check(address: str) -> str:
        if not re.fullmatch(r"https?://[^/\s]+\S*", address.strip(), re.IGNORECASE):
            raise wrong(f"an address such as {example}")
        return address

    return AfterValidator(check)


def _integral(value: object) -> object:
    """Convert whole numbers, which JSON writers print as 1e8; leave others to the strict check."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Flag = Annotated[bool, Strict()]
Integer = Annotated[int, Strict(), BeforeValidator(_integral)]
Rank = Annotated[Integer, ranges.Ge(0)]
Number = Annotated[float, Strict(), AllowInfNan(False)]
Threshold = Annotated[Number, ranges.Ge(0)]
Text = Annotated[str, Strict()]

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):(\d{1,5})")
_ADDRESS_FORM = Form("boolean or address", "", 'true, false, or a host and a port such as "10.0.0.1:29600"')


def args_of(key: str, models: Mapping[str, type[Section]]) -> PlainValidator:
    """Return the validator of arguments, of which the name in the field ``key`` beside them chooses the model."""
    return PlainValidator(lambda value, info: section_within(models.get(info.data.get(key, "")), value))


def section_within(model: type[Section] | None, value: object) -> Any:
    """Validate a section whose ``model`` depends on the name next to it; without a model, since the name is unknown or
    of another package, a mapping stays as it is.

    Raises:
        PydanticCustomError: of the kind that :func:`probe.core.config.errors.problems` unfolds.
    """
    if not isinstance(value, Mapping | Section):
        raise wrong("a mapping")
    if model is None or isinstance(value, model):
        return dict(value) if isinstance(value, Mapping) else value
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise PydanticCustomError("inside", "see error", {"model": model, "error": error}) from None


def host_and_port(text: str) -> tuple[str, int] | None:
    """Parse ``HOST:PORT``, such as ``10.0.0.1:29600`` or ``[::1]:0``; None for another text."""
    found = _ADDRESS.fullmatch(text)
    return (found[1].strip("[]"), int(found[2])) if found and int(found[2]) < 1 << 16 else None


def address_of(text: str) -> tuple[str, int]:
    """Parse host and port.

    Raises:
        ValueError: if ``text`` is no address.
    """
    address = host_and_port(text)
    if address is None or not address[1]:
        raise wrong(_ADDRESS_FORM.expected)
    return address


def _flag_or_address(value: object) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise wrong(_ADDRESS_FORM.expected)
    address_of(value)
    return value


FlagOrAddress = Annotated[bool | str, PlainValidator(_flag_or_address), _ADDRESS_FORM]

_SELECTOR = re.compile(r"(tensor)|(tuple|list|dict)\[(\d{1,6})\](?::(\d{1,6}))?", re.ASCII)
_SELECTOR_FORM = Form("element selector", 'such as "tensor", "tuple[2]:0", "list[3]:1" or "dict[2]:0"')


@dataclass(frozen=True)
class Selector:
    """Selector of one element of a module's inputs or outputs."""

    kind: str
    """``tensor``, ``tuple``, ``list`` or ``dict``."""
    length: int
    """Expected number of elements; 1 for a tensor."""
    index: int = 0
    """Position of the element, from 0; within a dict in the order of its keys."""

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Parse the selector ``text``; without an index it means element 0.

        Raises:
            ValueError: if ``text`` is no selector or its index is not below its length.
        """
        match = _SELECTOR.fullmatch(text.replace(" ", ""))
        if not match:
            raise wrong(_SELECTOR_FORM.expected)
        tensor, kind, length, index = match.groups(default="0")
        if match[1]:
            return cls(tensor, 1)
        if int(index) >= int(length):
            raise wrong(f"an element selector whose index is below its length {int(length)}")
        return cls(kind, int(length), int(index))

    def __str__(self) -> str:
        return self.kind if self.kind == "tensor" else f"{self.kind}[{self.length}]:{self.index}"


def _selector(value: object) -> Selector | None:
    if value is None or isinstance(value, Selector):
        return value
    if not isinstance(value, str):
        raise wrong(_SELECTOR_FORM.expected)
    return Selector.parse(value)


Place = Annotated[
    Selector | None,
    PlainValidator(_selector),
    PlainSerializer(lambda selector: selector and str(selector), return_type=str | None),
    _SELECTOR_FORM,
]


def peel(annotation: Any, metadata: Sequence[object] = ()) -> tuple[Any, list[object]]:
    """Return the bare type under ``Annotated`` and ``... | None``, and all metadata, outermost first."""
    items = [inner for item in metadata for inner in (item.metadata if isinstance(item, FieldInfo) else [item])]
    origin = get_origin(annotation)
    if origin is Annotated:
        bare, inside = peel(annotation.__origin__, annotation.__metadata__)
        return bare, items + inside
    if origin in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            bare, inside = peel(members[0])
            return bare, items + inside
    return annotation, items


def inner_sections(field: FieldInfo) -> Iterator[tuple[type[Section], str]]:
    """Yield the mappings of known keys that a field holds, each with the rule or channel that it belongs to."""
    bare, metadata = peel(field.annotation, field.metadata)
    for variants in metadata:
        if isinstance(variants, Variants):
            yield from ((model, rule) for rule, model in variants.models.items())
    for candidate in (bare, *get_args(bare)) if get_origin(bare) in (tuple, dict) else (bare,):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            yield candidate, ""


_NOUNS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def describe(annotation: Any, metadata: Sequence[object] = ()) -> Form:
    """Return the description of values of an annotated type."""
    bare, items = peel(annotation, metadata)
    for item in items:
        if isinstance(item, Form):
            return item
        if isinstance(item, Names):
            return Form("name", item.listed, message("one of {names}", names=item.listed))
    if bare is bool:
        return Form("boolean", "", message("true or false"))
    if get_origin(bare) is tuple:
        item_form = describe(get_args(bare)[0])
        among = message("out of {names}", names=item_form.range) if item_form.type == "name" else item_form.range
        phrase = joined(" ", filter(None, (message(f"a list of {item_form.type}s"), among)))
        return Form(f"list of {item_form.type}s", item_form.range, phrase)
    return Form(_NOUNS.get(bare, "mapping"), _range(items))


def _range(metadata: Sequence[object]) -> str:
    low = next((item.ge for item in metadata if isinstance(item, ranges.Ge)), None)
    high = next((item.le for item in metadata if isinstance(item, ranges.Le)), None)
    if low is not None and high is not None:
        return f"{low}..{high}"
    limits = [f">= {low}"] if low is not None else []
    limits += [f"> {item.gt}" for item in metadata if isinstance(item, ranges.Gt)]
    limits += [f"<= {high}"] if high is not None else []
    limits += [f"< {item.lt}" for item in metadata if isinstance(item, ranges.Lt)]
    return " and ".join(limits)
