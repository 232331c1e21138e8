"""Requests of objects in S3: parts, each with the version of the object that it is of, and how often one is repeated.

``fsspec`` has no function for a part and its version; without the version, a change between two parts of an object goes
unnoticed.
"""

from __future__ import annotations

import os
import time
from typing import Any

ATTEMPTS = 5
"""Attempts of a request that is refused or has no answer, and attempts to read an answer that breaks off."""


def limit_attempts(fs: Any) -> None:
    """Let botocore alone repeat requests of ``fs``, as ``AWS_RETRY_MODE`` and ``AWS_MAX_ATTEMPTS`` or its files say.

    s3fs would repeat each of its attempts: 25 requests and 40 seconds for an object that always answers 503, an hour if
    there are thousands. Where no mode is chosen, it is ``standard``: at most :data:`ATTEMPTS`, with 15 seconds between
    them, and a hundred repetitions in all that are not followed by answers.

    Args:
        fs: a ``s3fs.S3FileSystem`` that has made no request yet.
    """
    from botocore.session import Session

    fs.retries = 1
    session = Session(profile=fs.kwargs.get("profile"))
    if "AWS_RETRY_MODE" not in os.environ and "retry_mode" not in session.get_scoped_config():
        attempts = session.get_config_variable("max_attempts") or ATTEMPTS
        fs.config_kwargs = {"retries": {"mode": "standard", "total_max_attempts": attempts}} | fs.config_kwargs


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
