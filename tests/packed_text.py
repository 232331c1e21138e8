"""Compressed texts of a page from a file, in base 85."""

from __future__ import annotations

import base64
import re
import zlib

PACKED = re.compile(r'(?<=[">])c-[0-9A-Za-z!#$%&()*+\-;,=>?@^_`{|}~]{20,}(?=["<])')


def unpacked_text(text: str) -> bytes:
    """The bytes of a packed text."""
    return zlib.decompress(base64.b85decode(text.replace(",", "<")))
