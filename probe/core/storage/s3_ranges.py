"""Parts of objects in S3, each with the version of the object that it is of.

``fsspec`` has no such function; without the version, a change between two parts of an object goes unnoticed.
"""

from __future__ import annotations

import time
from typing import Any

ATTEMPTS = 5
"""Attempts to read an answer that breaks off; s3fs itself repeats requests that are refused."""


def fetched(fs: Any, path: str, part: tuple[int, int] | None) -> tuple[bytes, str]:
    """Return the bytes of an object and its ETag.

    Args:
        fs: a ``s3fs.S3FileSystem``.
        part: first byte, and the one after the last; None for the whole object.

    Raises:
        OSError: if it cannot be read.
    """
    from fsspec.asyn import sync
    from s3fs.core import S3_RETRYABLE_ERRORS

    bucket, key, _ = fs.split_path(path)
    asked = {"Range": f"bytes={part[0]}-{part[1] - 1}"} if part else {}
    for attempt in range(1, ATTEMPTS + 1):
        answer = fs.call_s3("get_object", Bucket=bucket, Key=key, **asked)
        try:
            return sync(fs.loop, answer["Body"].read), str(answer.get("ETag", "")).strip('"')
        except S3_RETRYABLE_ERRORS:
            if attempt == ATTEMPTS:
                raise
            time.sleep(0.1 * 1.7**attempt)
        finally:
            answer["Body"].close()
    raise AssertionError("the last attempt returns or raises")
