"""JSON files: one declaration of each kind's fields checks it, writes it and gives its schema.

The declarations are types, which pydantic checks; a `FileKind` reads and writes one. `KINDS` are
the JSON files of the package: one that is given in the place of another is named as what it is.
Files are written whole or not at all. What is given to a call is checked by `expect`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import functools
import hashlib
import json
import math
import operator
import os
import reprlib
import secrets
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema
from typing_extensions import dataclass_transform

Loaded = TypeVar("Loaded")
_SHOWN = 80  # characters that are shown of a wrong value
_LARGEST = 1 << 28  # bytes of a file: some twenty times a plan of 96 blocks
Class = TypeVar("Class", bound=type)

# Kind of file -> the fields by which it is known, and where such a file comes from
KINDS: Mapping[str, tuple[frozenset[str], str]] = {
    "plan": (frozenset({"cluster", "graph"}), "'autoddl plan -o FILE' writes one"),
    "graph": (frozenset({"ops", "tensors", "loss"}), "'autoddl trace -o FILE' writes one"),
    "calibration record": (
        frozenset({"machine", "collectives"}),
        "'autoddl calibrate' writes one beside its machine file",
    ),
    "hint file": (frozenset({"hints"}), "docs/hints.md tells what stands in one"),
    "machine file": (
        frozenset({"nodes", "gpus_per_node", "device"}),
        "'autoddl calibrate' writes one, 'autoddl machines' lists some",
    ),
}

# ---- types of fields

FIELDS = ConfigDict(extra="forbid", allow_inf_nan=False)
OMIT = Field(exclude_if=operator.not_)  # not in the file where it is empty, zero or None
Name = Annotated[str, Field(min_length=1), AfterValidator(lambda name: printable(name))]
Positive = Annotated[float, Field(strict=True, gt=0)]
NotNegative = Annotated[float, Field(strict=True, ge=0)]
Size = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[
    int,
    Field(strict=True, gt=0),
    BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n),  # 16e9
]


@dataclass(frozen=True)
class OneOf:
    """A text among these."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.literal_schema(list(self.names))


@dataclass(frozen=True)
class Stored:
    """In a file as a value of the type `form`, of which `read` makes ours; `write` inverts it."""

    form: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        form = handler.generate_schema(self.form)
        made: Any = source if dataclasses.is_dataclass(source) else ()  # by hand, not from a file

        def validate(value: Any, inner: Callable[[Any], Any]) -> Any:
            return value if isinstance(value, made) else self.read(inner(value))

        return core_schema.no_info_wrap_validator_function(
            validate,
            form,
            serialization=core_schema.plain_serializer_function_ser_schema(
                self.write, return_schema=form
            ),
        )


def printable(name: str) -> str:
    """The name. ValueError if a terminal would take a part of it for a command."""
    if not name.isprintable():
        raise ValueError(f"the name {name!r} has characters that are not text")
    return name


class Versioned:
    """The file's object has the field `version` as well: its class says which, as `VERSION`.

    Where the class is `SEALED` the object also has `fingerprint`, a hash of all else: one that was
    changed by hand is refused. One without that field is read.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        is_sealed = getattr(source, "SEALED", False)

        def read(data: Any, inner: Callable[[Any], Any]) -> Any:
            if not isinstance(data, Mapping):
                return inner(data)
            version = data.get("version", "missing")
            if version != source.VERSION:
                raise ValueError(
                    f"'version' is {version!r}; this autoddl reads version {source.VERSION}"
                )
            ours = {"version", "fingerprint"} if is_sealed else {"version"}
            value = inner({name: part for name, part in data.items() if name not in ours})
            if is_sealed and data.get("fingerprint") not in (None, fingerprint(data)):
                raise ValueError("it was changed after it was written: its fingerprint is another")
            return value

        def stored(value: Any, inner: Callable[[Any], Any]) -> dict[str, Any]:
            data = {"version": source.VERSION, **inner(value)}
            return {**data, "fingerprint": fingerprint(data)} if is_sealed else data

        return core_schema.no_info_wrap_validator_function(
            read,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(stored),
        )


def fingerprint(data: Mapping[str, Any]) -> str:
    """A hash of a JSON object without its field of this name: equal for equal ones."""
    rest = {name: part for name, part in data.items() if name != "fingerprint"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def checked(cls: Class) -> Class:
    """A frozen dataclass whose fields are checked when one is made; ValueError names the field."""
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=FIELDS)(cls)
    whole, names = made.__init__, [field.name for field in dataclasses.fields(made)]

    @functools.wraps(whole)
    def init(self: Any, *values: Any, **named: Any) -> None:
        try:
            whole(self, **dict(zip(names, values, strict=False)), **named)
        except ValidationError as error:
            raise ValueError(f"{cls.__name__}: {_told(error, TypeAdapter(made))}") from None

    made.__init__ = init
    return made


# ---- kinds of files


class _Schema(GenerateJsonSchema):
    """With versions, without titles that only repeat the names of fields."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> dict[str, Any]:
        told = super().dataclass_schema(schema)
        if version := getattr(schema["cls"], "VERSION", None):
            told["properties"] = {"version": {"const": version}, **told["properties"]}
            told["required"] = ["version", *told["required"]]
        if getattr(schema["cls"], "SEALED", False):
            told["properties"]["fingerprint"] = {"type": "string"}
        return told

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class FileKind(Generic[Loaded]):
    """A file that holds a value of the type `form`; `mend` says what to do about a bad one."""

    def __init__(self, name: str, form: Any, mend: str, indent: int = 1) -> None:
        self.name, self._form, self._mend, self._indent = name, form, mend, indent

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._form)

    def from_json(self, data: Any) -> Loaded:
        """The value of a JSON object. ValueError names the fields that are wrong."""
        try:
            return self._adapter.validate_python(data)
        except ValidationError as error:
            raise ValueError(f"{_told(error, self._adapter)}; {self._mend}") from None

    def to_json(self, value: Loaded) -> dict[str, Any]:
        """A JSON object; `from_json` inverts it."""
        return self._adapter.dump_python(value, mode="json", by_alias=True)

    def dumps(self, value: Loaded) -> str:
        """A file's text; `loads` inverts it."""
        return json.dumps(self.to_json(value), indent=self._indent)

    def loads(self, text: str) -> Loaded:
        """The value of a file's text. ValueError says what is wrong with it."""
        expect(text, (str, bytes), f"the text of a {self.name} is given as str")
        try:
            data = json.loads(text, object_pairs_hook=_unique)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not valid JSON: {error}; {self._mend}") from error
        return self.from_json(data)

    def load(self, path: str | Path) -> Loaded:
        """The value of a file, one of `KINDS`. ValueError names it and what is wrong."""
        return load_file(path, self.name, self.loads)

    def save(self, value: Loaded, path: str | Path) -> None:
        """The file is replaced only when the new one is complete."""
        write_atomically(path, self.dumps(value))

    def schema(self) -> dict[str, Any]:
        """The JSON schema of such files."""
        told = self._adapter.json_schema(schema_generator=_Schema)
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"autoddl {self.name}",
            **{name: part for name, part in told.items() if name != "title"},
        }


def load_file(path: str | Path, kind: str, loads: Callable[[str], Loaded]) -> Loaded:
    """What `loads` makes of the text of a file; `kind` is one of `KINDS`.

    ValueError names the file and what is wrong: also if there is none, or if it is of another kind.
    """
    check_path(path)
    try:
        is_known = os.path.isfile(path) or os.path.isdir(path)  # reading the latter is an error
        if not (is_known or os.path.samestat(os.stat(path), os.fstat(0))):
            raise ValueError(f"{path}: not a file")
        text = _text(path) if is_known else Path(path).read_text()
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file: {error}") from error
    try:
        return loads(text)
    except ValueError as error:
        found = kind_of(text)
        if found is None or found == kind:
            raise ValueError(f"{path}: {error}") from error
        raise ValueError(
            f"{path} is a {found}; a {kind} is needed here ({KINDS[kind][1]})"
        ) from error


def _text(path: str | Path) -> str:
    """Of a file; the kernel's own, which may have something to say later, are not waited for."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > _LARGEST:
            raise ValueError(f"{path}: has {size:,} bytes, {_LARGEST:,} at most are read")
        return (file.read() or b"").decode()


def kind_of(text: str) -> str | None:
    """Which of `KINDS` the text of a file is, or a "page"; None for any other."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return "page" if text.lstrip()[:14].lower() == "<!doctype html" else None
    if not isinstance(data, dict):
        return None
    return next((kind for kind, (fields, _) in KINDS.items() if fields <= data.keys()), None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """ValueError on a field that is given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {max(names, key=names.count)!r} is given twice")
    return found


# ---- what is wrong with a file, in words

# By the kind of mistake, where pydantic's own words are those of Python
_WORDS = {
    **dict.fromkeys(("dataclass_type", "mapping_type", "dict_type"), "must be an object"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    "too_short": "must have {min_length} or more items",
    "too_long": "must have {max_length} items at most",
    "string_too_short": "must not be empty",
}


def _told(error: ValidationError, adapter: TypeAdapter[Any], most: int = 3) -> str:
    """The first mistakes, each with its field and what was found there."""
    found = error.errors(include_url=False)
    told = [_mistake(dict(one), adapter) for one in found[:most]]
    more = [f"{len(found) - most} more"] if len(found) > most else []
    return "; ".join(told + more)


def _mistake(error: dict[str, Any], adapter: TypeAdapter[Any]) -> str:
    kind, place = error["type"], [part for part in error["loc"] if part != "[key]"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
    if kind in ("unexpected_keyword_argument", "extra_forbidden") or "[key]" in error["loc"]:
        *home, name = place
        known = _names(adapter.json_schema(), home)
        near = difflib.get_close_matches(name, known, n=1) or [k for k in known if name in k]
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        return f"unknown field {path!r}; {hint}"
    where = f"field {path!r}" if path else "it"
    if kind == "missing":
        return f"{where} is missing"
    if kind in ("value_error", "assertion_error"):
        return f"{where}: {error['ctx']['error']}" if path else str(error["ctx"]["error"])
    theirs = error["msg"].replace("a valid integer", "a whole number").replace("a valid", "a")
    what = _WORDS.get(kind) or theirs.replace("Input should be", "must be")
    return f"{where} {what.format_map(error.get('ctx', {}))}, got {reprlib.repr(error['input'])}"


def _names(schema: dict[str, Any], home: list[Any]) -> list[str]:
    """The fields of the object at the place `home` in a file."""
    part, parts = schema, schema.get("$defs", {})
    for name in (*home, None):
        part = next((p for p in part.get("anyOf", ()) if p.get("type") != "null"), part)
        part = parts[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if name is not None:
            inner = part.get("items") or part.get("additionalProperties") or {}
            part = part.get("properties", {}).get(name, inner)
    return list(part.get("properties") or part.get("propertyNames", {}).get("enum", ()))


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write beside the file and rename, so that a good file is never lost to a partial one.

    A text gets a newline at its end. A link's file is replaced, not the link, and keeps its mode
    and owner. A pipe or character device is written to, as is this process's own output
    (`/dev/stdout`, also where that is a file). OSError names the path.
    """
    check_path(path)
    data = content if isinstance(content, bytes) else f"{content}\n".encode()
    try:
        _write(path, data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error


def _write(path: str | Path, data: bytes) -> None:
    if os.fspath(path).endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    if old is not None and (handle := _written_to(path, old)) is not None:
        with os.fdopen(handle, "wb") as opened:
            opened.write(data)
        return
    file = Path(os.path.realpath(path))
    partial = file.with_name(f".{file.name[:200]}.{secrets.token_hex(4)}")
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode)  # the former less the umask
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o777)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(data)
        if old is not None:
            with contextlib.suppress(PermissionError):  # who may write it need not be its owner
                os.chown(partial, old.st_uid, old.st_gid)
            os.chmod(partial, mode)
        os.replace(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _written_to(path: str | Path, found: os.stat_result) -> int | None:
    """What is no file of its own is written to by this descriptor; None for a file."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(stream), found):
                sys.stdout.flush()
                return os.dup(stream)
    if stat.S_ISREG(found.st_mode):
        return None
    if stat.S_ISBLK(found.st_mode):
        raise OSError(errno.EPERM, "a disk is not written to")
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads is an error
    os.set_blocking(handle, True)
    return handle


def json_number(number: float) -> float | None:
    """The number, or None (null) if it is infinite, which JSON does not know."""
    return number if math.isfinite(number) else None


# ---- arguments of calls, which no file has checked


def expect(value: Any, kinds: type | tuple[type, ...], what: str) -> None:
    """TypeError unless `value` is of one of the types; `what` names the argument and the types."""
    if not isinstance(value, kinds):
        raise TypeError(f"{what}, got {shown(value)}")


def expect_callable(value: Any, what: str) -> None:
    """TypeError unless `value` can be called."""
    if not callable(value):
        raise TypeError(f"{what}, got {shown(value)}")


def check_path(path: Any) -> None:
    """TypeError unless it is a path, ValueError if no file can have it."""
    expect(path, (str, os.PathLike), "a file or folder is given as str or Path")
    if not os.fspath(path):
        raise ValueError("a file or folder is needed, got an empty name")
    if "\0" in os.fspath(path):
        raise ValueError(f"{os.fspath(path)!r} is no path: it has a null character")


def shown(value: Any) -> str:
    """Its type, and what it looks like."""
    text = repr(value)
    short = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"{short} ({type(value).__name__})"
