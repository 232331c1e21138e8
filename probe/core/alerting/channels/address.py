"""Addresses and secrets of channels: their arguments in a configuration, and their values, which are read once before
training begins."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, PlainSerializer, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from probe.core.alerting.redaction import register, register_address, shown_address
from probe.core.errors import advice_of
from probe.core.fields import Form, Section, Text, not_blank

LARGEST = 64 * 1024
"""Most bytes that are read of a file with an address or a secret."""
_URL = Form("URL", "", "an address that begins with http:// or https:// and has a host")


class AddressError(ValueError):
    """Error of an address or secret that cannot be used.

    Args:
        problems: pairs of a key of the arguments and a sentence.
    """

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {sentence}" for key, sentence in problems))
        self.problems = tuple(problems)


def is_url(text: str) -> bool:
    """Return whether ``text`` is an HTTP address with a host."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError if it is no port
    except ValueError:
        return False
    blank = any(character.isspace() or not character.isprintable() for character in text)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not blank


def _unseen(value: object) -> str:
    """Return a description of a wrong value that may be a secret."""
    return f"a text of {len(value)} characters" if isinstance(value, str) else type(value).__name__


def _url(value: object) -> str | None:
    if value is None or (isinstance(value, str) and is_url(value)):
        return value
    raise PydanticCustomError("expected", "expected", {"expected": _URL.expected, "shown": _unseen(value)})


Url = Annotated[
    str | None,
    PlainValidator(_url),
    PlainSerializer(lambda url: url and shown_address(url), return_type=str | None, when_used="json"),
    _URL,
]
"""HTTP address. In JSON, such as a manifest, only its scheme and host are written."""
Name = Annotated[Text, AfterValidator(not_blank)]


def at_most_one(section: Section, keys: Sequence[str], needed: bool) -> None:
    """Check that at most one of ``keys`` has a value, or exactly one if ``needed``.

    Raises:
        PydanticCustomError: if not.
    """
    present = [key for key in keys if getattr(section, key) is not None]
    if len(present) > 1 or (needed and not present):
        expected = f"{'exactly' if needed else 'at most'} one of {', '.join(keys)}"
        raise PydanticCustomError("expected", "expected", {"expected": expected, "shown": ", ".join(present) or "none"})


class AddressArgs(Section):
    """Address of a channel, in one of three places."""

    url: Url = None
    """Address, if it is no secret. One of url, url_file and url_variable is required."""
    url_file: Name | None = None
    """File that holds the address."""
    url_variable: Name | None = None
    """Environment variable that holds the address."""
    ca_file: Name | None = None
    """File with certificates (PEM) of the only authorities that are trusted, for servers whose certificates are signed
    within an organization. Missing: the public ones (of the package certifi, or SSL_CERT_FILE)."""

    @model_validator(mode="after")
    def _one_address(self) -> Any:
        at_most_one(self, ("url", "url_file", "url_variable"), needed=True)
        return self


class SecretAddressArgs(AddressArgs):
    """Address and secret of a channel."""

    secret_file: Name | None = None
    """File that holds the secret. Missing, and no secret_variable: none."""
    secret_variable: Name | None = None
    """Environment variable that holds the secret."""

    @model_validator(mode="after")
    def _one_secret(self) -> Any:
        at_most_one(self, ("secret_file", "secret_variable"), needed=False)
        return self


class Destination(NamedTuple):
    """Address that a channel sends to, with all that a request needs."""

    url: str
    trusted: ssl.SSLContext | bool
    """Certificates that are trusted; True for those of the public authorities."""
    secret: str = ""


def read_value(section: Section, name: str) -> str:
    """Read the value of ``name``, which stands in the arguments, a file or a variable; empty if it is in none. It is
    registered as a secret.

    Raises:
        AddressError: if the file cannot be read, the variable is not set, or either is empty.
    """
    key, value = _place(section, name)
    register(*([value] if name == "secret" else []))
    if key and not value:
        raise AddressError([(key, f"expected a value in {_quoted(section, key)}, got nothing")])
    return value


def _place(section: Section, name: str) -> tuple[str, str]:
    if (inline := getattr(section, name, None)) is not None:
        return name, inline
    if (file := getattr(section, f"{name}_file")) is not None:
        return f"{name}_file", _file_text(f"{name}_file", Path(file).expanduser())
    if (variable := getattr(section, f"{name}_variable")) is not None:
        if variable not in os.environ:
            sentence = f"expected the environment variable {variable}, which is not set; export it before training"
            raise AddressError([(f"{name}_variable", sentence)])
        return f"{name}_variable", os.environ[variable].strip()
    return "", ""


def _quoted(section: Section, key: str) -> str:
    return f'"{getattr(section, key)}"'


def _file_text(key: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode("utf-8").strip()
    except OSError as error:
        raise AddressError([(key, f'expected a file that can be read, got "{path}": {advice_of(error)}')]) from None
    except UnicodeDecodeError:
        raise AddressError([(key, f'expected a text in UTF-8 in "{path}"')]) from None


def read_server(args: AddressArgs) -> Destination:
    """Read address, secret and certificates.

    Raises:
        AddressError: with all problems.
    """
    problems: list[tuple[str, str]] = []
    url = secret = ""
    trusted: ssl.SSLContext | bool = True
    try:
        url = read_value(args, "url")
        register_address(url)
        if not is_url(url):
            key = "url_file" if args.url_file is not None else "url_variable"
            problems.append((key, f"expected {_URL.expected} in {_quoted(args, key)}, got {_unseen(url)}"))
    except AddressError as error:
        problems += error.problems
    try:
        secret = read_value(args, "secret") if isinstance(args, SecretAddressArgs) else ""
    except AddressError as error:
        problems += error.problems
    if args.ca_file is not None:
        try:
            trusted = ssl.create_default_context(cafile=str(Path(args.ca_file).expanduser()))
        except OSError as error:  # an error of SSL is one too: a file without a certificate
            sentence = f'expected a file with certificates (PEM), got "{args.ca_file}": {error.strerror or error}'
            problems.append(("ca_file", sentence))
    if problems:
        raise AddressError(problems)
    return Destination(url, trusted, secret)
